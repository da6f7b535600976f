"""The API port: the endpoints of each format, the version and the probes."""

from __future__ import annotations

from starlette.types import ASGIApp

from octavo_inference.server import health
from octavo_inference.server.anthropic.endpoints import ENDPOINTS as ANTHROPIC
from octavo_inference.server.application import http_application
from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.openai.endpoints import ENDPOINTS as OPENAI
from octavo_inference.server.openai_responses.endpoints import ENDPOINTS as OPENAI_RESPONSES
from octavo_inference.server.page import page_endpoints
from octavo_inference.server.rerank.endpoints import ENDPOINTS as RERANK
from octavo_inference.server.service import Service
from octavo_inference.server.tokens.endpoints import ENDPOINTS as TOKENS


def public_endpoints(version: str) -> tuple[HttpEndpoint, ...]:
    """The endpoints of the API port."""
    return (
        *OPENAI,
        *OPENAI_RESPONSES,
        *ANTHROPIC,
        *TOKENS,
        *RERANK,
        *health.endpoints(version),
    )


def public_app(service: Service, keys: Keys | None, version: str, *, page: bool = True) -> ASGIApp:
    """The app of the API port, with or without the page. With `keys`, every path but the open ones needs one."""
    endpoints = [*public_endpoints(version), *(page_endpoints(version) if page else ())]
    return http_application(service, endpoints, title="Octavo", version=version, keys=keys)
