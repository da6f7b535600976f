"""/openapi.json and /docs of both ports, and answers of the server against the document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest

from octavo_inference.server.admin import admin_endpoints
from octavo_inference.server.application import open_paths
from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openapi.document import Document, operation_ids
from octavo_inference.server.openapi.legacy import as_openapi_30
from octavo_inference.server.openapi.operations import ERRORS, example
from octavo_inference.server.openapi.pages import ASSETS, documentation
from octavo_inference.server.openapi.schemas import schemas
from octavo_inference.server.public import public_endpoints

PUBLIC = public_endpoints("1.2.3")
ADMIN = admin_endpoints(lambda: None)
TABLES = pytest.mark.parametrize("endpoints", [PUBLIC, ADMIN], ids=["public", "admin"])


def document(endpoints: tuple[HttpEndpoint, ...] = PUBLIC, *, keyed: bool = True) -> dict[str, Any]:
    return json.loads(Document("Octavo", "1.2.3", endpoints, "m", keyed).encoded())


def operations(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def resolved(found: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = found
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def validate(found: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": found["components"]}).validate(value)


@TABLES
def test_the_document_is_openapi_31(endpoints):
    from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

    OPENAPI_31_VALIDATOR.validate(document(endpoints))


@TABLES
def test_every_schema_is_a_json_schema(endpoints):
    for schema in document(endpoints)["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@TABLES
def test_every_reference_leads_to_a_component(endpoints):
    found = document(endpoints)
    for reference in references(found):
        resolved(found, {"$ref": reference})


@TABLES
def test_every_endpoint_is_an_operation(endpoints):
    shown = {(method.upper(), path) for method, path, _ in operations(document(endpoints))}
    assert shown == {(endpoint.method, endpoint.url) for endpoint in endpoints}


@TABLES
def test_operations_have_unique_ids_and_a_summary(endpoints):
    found = [operation for _, _, operation in operations(document(endpoints))]
    ids = [operation["operationId"] for operation in found]
    assert len(set(ids)) == len(ids)
    assert all(operation["summary"] and operation["tags"] for operation in found)


def test_a_handler_with_two_paths_has_two_ids():
    first, second = (HttpEndpoint("GET", path, PUBLIC[0].respond, answer=str) for path in ("/a/{name}", "/b"))
    assert set(operation_ids([first, second]).values()) == {"list_models_a_name", "list_models_b"}


@TABLES
def test_no_operation_needs_a_key_without_keys(endpoints):
    found = document(endpoints, keyed=False)
    assert "securitySchemes" not in found["components"]
    assert not [
        path for _, path, operation in operations(found) if "security" in operation or "401" in operation["responses"]
    ]


@TABLES
def test_with_keys_only_open_paths_need_none(endpoints):
    free = {path for _, path, operation in operations(document(endpoints)) if "security" not in operation}
    assert free == open_paths(endpoints)


@TABLES
def test_every_error_has_the_four_keys(endpoints):
    found = document(endpoints)
    for name, response in found["components"]["responses"].items():
        if not name.startswith("ErrorObject"):
            continue
        schema = resolved(found, response["content"]["application/json"]["schema"])
        detail = resolved(found, schema["properties"]["error"])
        assert set(detail["required"]) == {"message", "type", "param", "code"}, name


def test_an_endpoint_with_a_body_lists_every_status_that_it_can_have():
    chat = document()["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {int(status) for status in chat} == {200, *ERRORS} - {403, 405, 409}


def test_retry_after_is_described_where_it_is_sent():
    found = document()["components"]["responses"]
    assert "Retry-After" in found["ErrorObject503"]["headers"]
    assert "Retry-After" in found["ErrorObject429"]["headers"]


def test_the_answer_to_a_wrong_method_is_described():
    assert "Allow" in document()["components"]["responses"]["ErrorObject405"]["headers"]


def test_an_endpoint_that_streams_describes_its_events():
    content = document()["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    events = set(references(content["text/event-stream"]))
    assert events == {"#/components/schemas/ChatChunk", "#/components/schemas/ErrorObject"}


def test_parameters_of_path_query_and_headers_are_described():
    path = document()["paths"]["/v1/models/{name}"]["get"]["parameters"]
    query = document(ADMIN)["paths"]["/v1/octavo/load"]["get"]["parameters"]
    headers = document()["paths"]["/v1/chat/completions"]["post"]["parameters"]
    assert (path[0]["name"], path[0]["in"], path[0]["required"]) == ("name", "path", True)
    assert (query[0]["name"], query[0]["in"], query[0]["schema"]["pattern"]) == (
        "cache_after",
        "query",
        "^[0-9]{1,18}$",
    )
    assert [parameter["$ref"].rpartition("/")[2] for parameter in headers] == ["RequestId", "Timeout"]


def test_every_field_of_a_request_has_a_description():
    found = document()
    bodies = {endpoint.body for endpoint in PUBLIC if endpoint.body is not None}
    _, _, components = schemas(list(bodies), [])
    missing = [
        f"{name}.{field}"
        for name in components
        for field, schema in found["components"]["schemas"][name]["properties"].items()
        if "description" not in schema and field != "type"
    ]
    assert not missing, "write a docstring below the field, or its meaning in server/openapi/meanings.py"


BODIES = [endpoint for endpoint in (*PUBLIC, *ADMIN) if endpoint.body is not None]


@pytest.mark.parametrize("endpoint", BODIES, ids=lambda endpoint: endpoint.path)
def test_every_body_has_an_example_that_is_valid(endpoint):
    found = document(ADMIN if endpoint in ADMIN else PUBLIC)
    body = found["paths"][endpoint.url]["post"]["requestBody"]["content"]["application/json"]
    validate(found, body["schema"], body["example"])
    msgspec.convert(example(endpoint, "m"), endpoint.body)


@pytest.mark.parametrize("endpoint", [each for each in BODIES if each in PUBLIC], ids=lambda endpoint: endpoint.path)
async def test_every_example_is_answered_as_described(serve, endpoint):
    async with serve() as server:
        response = await server.api.post(endpoint.path, json=example(endpoint, "m"))
    assert response.status_code == 200
    conforms(document(keyed=False), endpoint, response)


@pytest.mark.parametrize("endpoint", [e for e in PUBLIC if e.method == "GET"], ids=lambda endpoint: endpoint.path)
async def test_answers_of_the_api_port_are_as_described(serve, endpoint):
    async with serve() as server:
        response = await server.api.get(endpoint.path.replace("{name:path}", "m"))
    conforms(document(keyed=False), endpoint, response)


@pytest.mark.parametrize("endpoint", ADMIN, ids=lambda endpoint: endpoint.path)
async def test_answers_of_the_admin_port_are_as_described(serve, endpoint):
    async with serve() as server:
        response = await server.admin.request(endpoint.method, endpoint.path)
    conforms(document(ADMIN, keyed=False), endpoint, response)


OPTIONS = [
    {"logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 3},
    {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True},
    {"stream": True, "n": 2, "stop_token_ids": [0, 1]},
    {"temperature": 9},
    {"model": "other"},
    {"tools": []},
]


@pytest.mark.parametrize("fields", OPTIONS, ids="-".join)
async def test_every_kind_of_chat_answer_is_as_described(serve, fields):
    endpoint = next(endpoint for endpoint in PUBLIC if endpoint.path == "/v1/chat/completions")
    async with serve() as server:
        conforms(document(keyed=False), endpoint, await server.chat(**fields))


@pytest.mark.parametrize("headers", [{"x-request-timeout": "soon"}, {"content-type": "text/plain"}], ids=str)
async def test_refusals_of_headers_are_as_described(serve, headers):
    endpoint = next(endpoint for endpoint in PUBLIC if endpoint.path == "/v1/chat/completions")
    async with serve() as server:
        conforms(document(keyed=False), endpoint, await server.chat(headers=headers))


async def test_unavailability_is_as_described(serve):
    async with serve(ready=False) as server:
        for endpoint in (endpoint for endpoint in PUBLIC if 503 in endpoint.statuses and endpoint.method == "GET"):
            conforms(document(keyed=False), endpoint, await server.api.get(endpoint.path))


def conforms(found: dict[str, Any], endpoint: HttpEndpoint, response: httpx.Response) -> None:
    """The response has a status, headers and a body that the document gives for the endpoint."""
    described = resolved(
        found, found["paths"][endpoint.url][endpoint.method.lower()]["responses"][str(response.status_code)]
    )
    headers = {name: resolved(found, header) for name, header in described["headers"].items()}
    for name, header in headers.items():
        assert name in response.headers or not header.get("required"), name
        if name in response.headers:
            value = response.headers[name]
            validate(found, header["schema"], int(value) if header["schema"].get("type") == "integer" else value)
    media = response.headers["content-type"].partition(";")[0]
    schema = described["content"][media]["schema"]
    if media != "text/event-stream":
        validate(found, schema, response.json() if media == "application/json" else response.text)
        return
    message, end = schema["properties"]["data"]["anyOf"]
    *events, last = re.findall(r"^data: (.*)$", response.text, re.MULTILINE)
    assert last == end["const"]
    assert events
    for event in events:
        validate(found, message["contentSchema"], json.loads(event))


async def test_the_document_of_each_port_needs_no_key(serve, tmp_path):
    (tmp_path / "keys").write_text("secret")
    async with serve(keys=Keys(str(tmp_path / "keys"), "--api-key-file")) as server:
        public, admin = [await port.get("/openapi.json") for port in (server.api, server.admin)]
        refused = await server.api.get("/openapi.yaml")
    assert public.json() == document()
    assert set(admin.json()["paths"]) == {endpoint.url for endpoint in ADMIN}
    assert refused.status_code == 401


async def test_the_application_gives_the_same_document(serve):
    async with serve() as server:
        application = server.api._transport.app._app
        assert application.openapi() == (await server.api.get("/openapi.json")).json()


PAGES = [endpoint.path for endpoint in documentation(Document("Octavo", "1", (), "m", keyed=False))]


@pytest.mark.parametrize("port", ["api", "admin"])
async def test_the_page_loads_nothing_from_other_hosts(serve, port):
    async with serve() as server:
        client: httpx.AsyncClient = getattr(server, port)
        page = await client.get("/docs")
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        script = (await client.get("/docs/start.js")).text
        statuses = [(await client.get(f"/{path}")).status_code for path in loaded]
    assert "//" not in page.text.replace("<!DOCTYPE html>", "")
    assert "//" not in script
    assert loaded
    assert statuses == [200] * len(loaded)


async def test_the_page_allows_only_its_own_files(serve):
    async with serve() as server:
        policy = (await server.api.get("/docs")).headers["content-security-policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == "'self'"
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_the_page_has_no_script_or_style_in_itself(serve):
    async with serve() as server:
        page = (await server.api.get("/docs")).text
    assert re.findall(r"<script(?![^>]*src=)|<style|style=|onload", page) == []


async def test_the_page_sends_the_document_to_no_validator(serve):
    async with serve() as server:
        script = (await server.api.get("/docs/start.js")).text
    assert "validatorUrl: null" in script


@pytest.mark.parametrize("path", PAGES)
async def test_documentation_is_there_without_a_key(serve, tmp_path, path):
    (tmp_path / "keys").write_text("secret")
    async with serve(keys=Keys(str(tmp_path / "keys"), "--api-key-file")) as server:
        response = await server.api.get(path)
        changed = await server.api.post(path)
    assert response.status_code == 200
    assert response.content
    assert changed.status_code == 405


@pytest.mark.parametrize("name", ["swagger-ui.js", "..%2f__init__.py", "../../__init__.py", "index.html", ""])
async def test_no_other_file_is_served(serve, name):
    async with serve() as server:
        assert (await server.api.get(f"/docs/{name}")).status_code == 404


def test_the_files_of_the_page_are_in_the_package():
    from swagger_ui_bundle import swagger_ui_path

    assert all((swagger_ui_path / name).is_file() for name in ASSETS)


@TABLES
def test_the_page_gets_a_document_of_openapi_30(endpoints):
    from schemathesis.specs.openapi.definitions import OPENAPI_30_VALIDATOR

    rewritten = as_openapi_30(document(endpoints))
    OPENAPI_30_VALIDATOR.validate(rewritten)
    assert rewritten["openapi"].startswith("3.0.")


def test_the_older_document_keeps_bounds_and_null():
    rewritten = as_openapi_30({"openapi": "3.1.0", "x": [
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}], "default": None},
        {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]},
        {"type": "null", "description": "none"},
        {"const": 5},
        {"$ref": "#/a", "description": "words"},
    ]})  # fmt: skip
    assert rewritten["x"] == [
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1, "default": None, "nullable": True},
        {"anyOf": [{"$ref": "#/a"}], "nullable": True},
        {"description": "none", "nullable": True, "enum": [None]},
        {"enum": [5]},
        {"description": "words", "allOf": [{"$ref": "#/a"}]},
    ]
