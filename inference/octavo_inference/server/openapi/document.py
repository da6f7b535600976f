"""The OpenAPI document of a port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openapi import operations
from octavo_inference.server.openapi.operations import MessageSchemas
from octavo_inference.server.openapi.schemas import Schema, schemas

OPENAPI_VERSION = "3.1.0"
DESCRIPTION = """\
- Every response has `X-Request-Id`. Every error has a JSON body.
- A whole number has no fraction and no exponent: `5`, not `5.0`.
- Another method than those of a path is refused with 405, an unknown path with 404.
- A stream ends with an error event if the request fails after its first event.
"""


@dataclass(slots=True)
class Document:
    """The document of a port's endpoints, made when it is first read. `model` is the name in examples."""

    title: str
    version: str
    endpoints: tuple[HttpEndpoint, ...]
    model: str
    keyed: bool
    _encoded: bytes | None = field(default=None, init=False)

    def encoded(self) -> bytes:
        """The document as JSON. The first call takes tens of milliseconds."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self._built())
        return self._encoded

    def _built(self) -> dict[str, Any]:
        described = [endpoint for endpoint in self.endpoints if endpoint.answer is not None]
        messages, components = _message_schemas(described)
        ids = operation_ids(described)
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in described:
            paths.setdefault(endpoint.url, {})[endpoint.method.lower()] = operations.operation(
                endpoint, messages[endpoint], operation_id=ids[endpoint], model=self.model, keyed=self.keyed
            )
        return {
            "openapi": OPENAPI_VERSION,
            "info": {"title": self.title, "version": self.version, "description": DESCRIPTION},
            "paths": paths,
            "components": {
                "schemas": components,
                "responses": dict(self._errors(described, messages)),
                "headers": operations.HEADERS,
                "parameters": operations.PARAMETERS,
                **({"securitySchemes": operations.SECURITY} if self.keyed else {}),
            },
            "tags": [{"name": surface} for surface in dict.fromkeys(endpoint.surface for endpoint in described)],
        }

    def _errors(
        self, described: list[HttpEndpoint], messages: dict[HttpEndpoint, MessageSchemas]
    ) -> Iterable[tuple[str, dict[str, Any]]]:
        # 405 belongs to no operation: it is the response to a method that the path does not have.
        everywhere = [405, *([401] if self.keyed else [])]
        used = {(messages[endpoint].error, status) for endpoint in described for status in endpoint.statuses}
        used |= {(messages[endpoint].error, status) for endpoint in described for status in everywhere}
        for error, status in sorted(used):
            schema = {"$ref": f"#/components/schemas/{error}"}
            yield operations.error_name(error, status), operations.error_response(status, schema)


def operation_ids(endpoints: Iterable[HttpEndpoint]) -> dict[HttpEndpoint, str]:
    """Unique names of operations: the handler's name, with the path where one handler has several."""
    endpoints = list(endpoints)
    count = Counter(endpoint.respond.__name__ for endpoint in endpoints)
    return {
        endpoint: name if count[name] == 1 else f"{name}{endpoint.url.replace('/', '_').translate(_BRACES)}"
        for endpoint in endpoints
        for name in [endpoint.respond.__name__]
    }


_BRACES = str.maketrans("", "", "{}")


def _message_schemas(
    endpoints: list[HttpEndpoint],
) -> tuple[dict[HttpEndpoint, MessageSchemas], dict[str, Schema]]:
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    events = [endpoint.event for endpoint in endpoints if endpoint.event is not None]
    answers = [endpoint.answer for endpoint in endpoints]
    errors = [endpoint.error for endpoint in endpoints]
    read, written, components = schemas(bodies, [*answers, *errors, *events])
    body, answer = iter(read), iter(written[: len(endpoints)])
    error, event = iter(written[len(endpoints) : 2 * len(endpoints)]), iter(written[2 * len(endpoints) :])
    found = {
        endpoint: MessageSchemas(
            None if endpoint.body is None else next(body),
            next(answer),
            None if endpoint.event is None else next(event),
            next(error)["$ref"].rpartition("/")[2],
        )
        for endpoint in endpoints
    }
    return found, components
