"""The server's endpoints are the routes that the gateway forwards."""

from __future__ import annotations

import re

from octavo_inference.server.anthropic.responses import AnthropicError
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.public import public_endpoints
from octavo_protocol.routes import OPEN_PATHS, ROUTES, Route, Surface, UsageForm

ENDPOINTS = public_endpoints("1.2.3")
# /openapi.json and /docs describe one server: the gateway does not forward them.


def shape(method: str, path: str) -> tuple[str, str]:
    return method, re.sub(r"{[^}]*}", "{}", path)


def served(route: Route) -> HttpEndpoint:
    (found,) = [one for one in ENDPOINTS if shape(one.method, one.path) == shape(route.method, route.path)]
    return found


def test_every_route_is_an_endpoint_of_the_server_and_the_other_way_round() -> None:
    routes = {shape(route.method, route.path) for route in ROUTES}
    assert routes == {shape(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    assert len(routes) == len(ROUTES) == len(ENDPOINTS)


def test_both_agree_on_keys_bodies_and_streams() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.is_open} == OPEN_PATHS
    for route in ROUTES:
        endpoint = served(route)
        assert (endpoint.body is not None) == (route.body_limit > 0), route.path
        if endpoint.body is not None:
            assert (endpoint.event is not None) == route.streams, route.path
            assert set(route.prompt) <= set(endpoint.body.__struct_fields__), route.path
            assert ("previous_response_id" in endpoint.body.__struct_fields__) == route.continues, route.path


def test_both_agree_on_the_form_of_errors_and_usage() -> None:
    for route in ROUTES:
        endpoint = served(route)
        assert (endpoint.error is AnthropicError) == (route.surface is Surface.ANTHROPIC), route.path
        answer = endpoint.answer
        fields = getattr(answer, "__struct_fields__", ())
        assert ("usage" in fields and route.model.name == "BODY") == (route.usage is not UsageForm.NONE), route.path
