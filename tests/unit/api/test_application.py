"""The FastAPI application: routes from the table, and nothing of FastAPI or pydantic in the way of a request."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.server import application
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.public import public_endpoints
from octavo_inference.server.service import Service


def routes_of(server) -> dict[str, application.MessageRoute]:
    app = server.api._transport.app._app
    assert isinstance(app, FastAPI)
    return {route.path: route for route in app.routes}


async def test_every_endpoint_of_the_table_is_a_route(serve):
    async with serve() as server:
        routes = routes_of(server)
    assert {endpoint.path for endpoint in public_endpoints("")} <= routes.keys()


async def test_a_route_has_the_summary_and_the_surface_of_its_handler(serve):
    async with serve() as server:
        route = routes_of(server)["/v1/chat/completions"]
    assert route.tags == ["openai"]
    assert route.summary == "Answer a conversation, whole or as a stream."


async def test_what_can_be_read_can_be_asked_for_without_its_body(serve):
    async with serve() as server:
        response = await server.api.head("/v1/models")
    assert (response.status_code, response.content) == (200, b"")


async def test_a_request_meets_no_exit_stacks_of_fastapi(serve):
    seen: list[set[str]] = []

    async def look(_: Service, request: Request) -> Response:
        """Note what is in the scope."""
        seen.append(set(request.scope))
        return Response()

    async with serve() as server:
        app = application.http_application(
            server.service, [HttpEndpoint("GET", "/look", look, answer=str)], title="", version="", keys=None
        )
        server.api._transport.app = app
        await server.api.get("/look")
    assert len(seen) == 1
    assert not {key for key in seen[0] if "astack" in key}
