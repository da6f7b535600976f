"""The real server against its own /openapi.json: random requests, within the document and outside it.

Schemathesis makes the requests: examples, the bounds of every field, other methods and media types, and random bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.integration.api.conftest import MODEL
from tests.support.tiers import scaled

from octavo_inference.server.openapi.document import Document
from octavo_inference.server.public import public_endpoints

pytestmark = pytest.mark.slow

VERSION = "0"
DOCUMENT = json.loads(Document("Octavo", VERSION, public_endpoints(VERSION), MODEL, keyed=False).encoded())
# 408: on a machine that is too busy to send a body within the server's limit.
REFUSALS = ["400", "401", "404", "405", "408", "413", "415"]
CONFIG = schemathesis.Config.from_dict(
    {"generation": {"deterministic": True}, "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
# Refusals by type. A body that fits the document gets none of them.
TYPE_ERRORS = {"invalid_json", "invalid_type", "invalid_value", "unknown_parameter", "unsupported_parameter",
               "missing_required_parameter"}  # fmt: skip
# `model` must be a name that is served, and some fields limit each other: neither is in a schema.
UNCHECKED = [positive_data_acceptance]
MAX_TOKENS = 2


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def test_the_server_serves_the_document_that_is_tested(server):
    served = server.api.get("/openapi.json").json()
    served["info"]["version"] = VERSION
    assert served == DOCUMENT


def _test_of(path: str, method: str) -> Callable[..., None]:
    """The test of one operation. Each has a name of its own: pytest-xdist runs only one of several equal names."""

    @SCHEMA.include(path=path, method=method).parametrize()
    @settings(max_examples=scaled(20), deadline=None, suppress_health_check=list(HealthCheck))
    def test(server, session, case):
        positive = case.meta is not None and case.meta.generation.mode.is_positive
        if positive and isinstance(case.body, dict):
            case.body = whole(case.body)
            shorten(case.body, path)
        response = case.call(base_url=str(server.api.base_url).rstrip("/"), session=session, timeout=120)
        case.validate_response(response, excluded_checks=UNCHECKED)
        if positive and response.status_code == 400:
            # Errors of the Messages API have no code. Responses need an input, of which null is none.
            refused = TYPE_ERRORS - ({"missing_required_parameter"} if path.startswith("/v1/responses") else set())
            assert response.json()["error"].get("code") not in refused, (case.body, response.text)

    return test


for _path, _operations in DOCUMENT["paths"].items():
    for _method in _operations:
        globals()[f"test_{_method}{re.sub(r'[^a-z0-9]+', '_', _path)}"] = _test_of(_path, _method.upper())


def whole(value: object) -> object:
    """A JSON value with 5 for 5.0: JSON Schema calls both integers, and the server takes the first alone."""
    if isinstance(value, dict):
        return {key: whole(child) for key, child in value.items()}
    if isinstance(value, list):
        return [whole(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shorten(body: dict, path: str) -> None:
    """Ask for a short answer of the model that is served."""
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    if "model" in fields:
        body["model"] = MODEL
    body.update({name: MAX_TOKENS for name in ("max_tokens", "max_output_tokens") if name in fields})
    for name in ("max_completion_tokens", "min_tokens"):
        body.pop(name, None)
    for name in ("n", "best_of"):
        if body.get(name) is not None:
            body[name] = 1 + body[name] % 2
