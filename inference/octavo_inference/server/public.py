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


def public_app(service: Service, keys: Keys | None, version: str) -> ASGIApp:
    """The app of the API port. With `keys`, every path but probes and documentation needs one."""
    return http_application(service, public_endpoints(version), title="Octavo", version=version, keys=keys)
