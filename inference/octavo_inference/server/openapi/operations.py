"""The OpenAPI description of one endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo_inference.core.request import MAX_TIMEOUT
from octavo_inference.server.connection import MAX_HEAD, MAX_HEADERS
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import RETRY_AFTER_SECONDS
from octavo_inference.server.json_body import MAX_BODY
from octavo_inference.server.openapi.docstrings import joined
from octavo_inference.server.openapi.schemas import Schema, inline_schema
from octavo_protocol.names import HEADER_REQUEST_ID, HEADER_TIMEOUT

ERRORS = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or object.",
    405: "The path does not take this method.",
    408: "The body did not arrive in time.",
    403: "The server is not started with what this needs.",
    409: "The state of the server or of the object does not allow this now.",
    413: f"The body is larger than {MAX_BODY:,} bytes.",
    415: "The body is not plain JSON, or its `Content-Type` is not `application/json`.",
    429: "The API key has reached its limit. Only a gateway sends this.",
    431: f"The head is larger than {MAX_HEAD:,} bytes, or has more than {MAX_HEADERS} headers.",
    500: "The server failed.",
    503: "The server is loading, full or draining; try again.",
    504: f"The time of `{HEADER_TIMEOUT}` passed without a token.",
}
"""Error statuses of all endpoints, and what they mean."""

_REQUEST_ID_HEADER = {"$ref": "#/components/headers/RequestId"}
HEADERS = {
    "RequestId": {
        "description": "Id of the request in the server's log.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "RetryAfter": {
        "description": "Seconds to wait before the next attempt.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 120},
        "example": RETRY_AFTER_SECONDS,
    },
    "Allow": {"description": "The methods that the path takes.", "required": True, "schema": {"type": "string"}},
    "WwwAuthenticate": {"description": "Always `Bearer`.", "required": True, "schema": {"const": "Bearer"}},
}
"""Components: headers of responses."""

PARAMETERS = {
    "RequestId": {
        "name": HEADER_REQUEST_ID,
        "in": "header",
        "description": "Id of the request in the log and the response: 1 to 128 letters, digits and `.`, `_`, `-`. "
        "The server replaces any other value by an id of its own.",
        "schema": {"type": "string"},
    },
    "Timeout": {
        "name": HEADER_TIMEOUT,
        "in": "header",
        "description": f"Deadline in seconds, from 0.001 to {MAX_TIMEOUT:g}. A request without a token by then ends "
        "with 504, another with the text so far.",
        "schema": {"type": "string", "pattern": r"^\d{1,6}(\.\d{1,6})?$"},
        "example": "30",
    },
}
"""Components: headers of requests."""

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Components: the two ways to send an API key."""


@dataclass(frozen=True, slots=True)
class MessageSchemas:
    """Schemas of an endpoint's messages, and the component name of its error type. None if there is no such message."""

    body: Schema | None
    answer: Schema | None
    event: Schema | None
    error: str


def operation(
    endpoint: HttpEndpoint, schemas: MessageSchemas, *, operation_id: str, model: str, keyed: bool
) -> dict[str, Any]:
    """The operation object of an endpoint. `keyed`: the port has API keys."""
    summary, _, more = joined(endpoint.respond.__doc__ or "").partition("\n\n")
    needs_key = keyed and not endpoint.is_open
    described: dict[str, Any] = {
        "operationId": operation_id,
        "tags": [endpoint.surface],
        "summary": summary.rstrip("."),
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, schemas, needs_key=needs_key),
    }
    if more:
        described["description"] = more
    if schemas.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": _body(endpoint, schemas, model)}}
    if needs_key:
        described["security"] = [{name: []} for name in SECURITY]
    return described


def error_response(status: int, schema: Schema) -> dict[str, Any]:
    """The response object of an error."""
    headers: dict[str, Any] = {HEADER_REQUEST_ID: _REQUEST_ID_HEADER}
    extra = {401: "WwwAuthenticate", 405: "Allow", 429: "RetryAfter", 503: "RetryAfter"}.get(status)
    if extra:
        name = {"WwwAuthenticate": "WWW-Authenticate", "RetryAfter": "Retry-After"}.get(extra, extra)
        headers[name] = {"$ref": f"#/components/headers/{extra}"}
    return {"description": ERRORS[status], "headers": headers, "content": {"application/json": {"schema": schema}}}


def error_name(error: str, status: int) -> str:
    """Name of the component of an error response."""
    return f"{error}{status}"


def example(endpoint: HttpEndpoint, model: str) -> Mapping[str, object] | None:
    """The example of a body, with the name of the model if the body has that field."""
    if endpoint.example is None or endpoint.body is None:
        return endpoint.example
    has_model = any(field.name == "model" for field in msgspec.structs.fields(endpoint.body))
    return {**({"model": model} if has_model else {}), **endpoint.example}


def _body(endpoint: HttpEndpoint, schemas: MessageSchemas, model: str) -> dict[str, Any]:
    found = example(endpoint, model)
    return {"schema": schemas.body, **({} if found is None else {"example": found})}


def _parameters(endpoint: HttpEndpoint) -> list[dict[str, Any]]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in endpoint.parameters
    ]
    references = ["RequestId", *(["Timeout"] if 504 in endpoint.statuses else [])]
    return path + _query(endpoint.query) + [{"$ref": f"#/components/parameters/{name}"} for name in references]


def _query(kind: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if kind is None:
        return []
    schema = inline_schema(kind)
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), **_parameter(described)}
        for name, described in schema["properties"].items()
    ]


def _parameter(described: Schema) -> dict[str, Any]:
    """A parameter of the query: a field of a struct, which is absent instead of null."""
    description = {"description": described["description"]} if "description" in described else {}
    options = [option for option in described.get("anyOf", [described]) if option.get("type") != "null"]
    schema = options[0] if len(options) == 1 else {"anyOf": options}
    return {**description, "schema": {key: value for key, value in schema.items() if key != "description"}}


def _responses(endpoint: HttpEndpoint, schemas: MessageSchemas, *, needs_key: bool) -> dict[str, Any]:
    content: dict[str, Any] = {endpoint.media: {"schema": schemas.answer}}
    if schemas.event is not None:
        content["text/event-stream"] = {"schema": _stream_event(schemas)}
    success = {
        "description": "The answer." if schemas.event is None else "The answer, whole or as a stream of events.",
        "headers": {HEADER_REQUEST_ID: _REQUEST_ID_HEADER},
        "content": content,
    }
    statuses = sorted({*endpoint.statuses, *([401] if needs_key else [])})
    references = {
        str(status): {"$ref": f"#/components/responses/{error_name(schemas.error, status)}"} for status in statuses
    }
    return {str(endpoint.status): success, **references}


def _stream_event(schemas: MessageSchemas) -> Schema:
    """One server-sent event, as an object of its fields."""
    error = {"$ref": f"#/components/schemas/{schemas.error}"}
    message = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schemas.event, error]},
    }
    return {
        "description": "One event of the stream. An error after the first event is an event, too.",
        "type": "object",
        "properties": {
            "data": {"anyOf": [message, {"const": "[DONE]", "description": "The end of a stream of OpenAI's format."}]},
            "event": {"type": "string"},
        },
        "required": ["data"],
    }
