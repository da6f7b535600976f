"""GET /v1/models, in the format of the API whose client asks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.server.anthropic import models as anthropic
from octavo_inference.server.anthropic.errors import is_anthropic
from octavo_inference.server.openai import models as openai
from octavo_inference.server.service import Service


async def list_models(service: Service, request: Request) -> Response:
    """List all names of the model."""
    if is_anthropic(request.url.path, request.headers):
        return await anthropic.list_models(service, request)
    return await openai.list_models(service, request)


async def get_model(service: Service, request: Request) -> Response:
    """Get one model by name."""
    if is_anthropic(request.url.path, request.headers):
        return await anthropic.get_model(service, request)
    return await openai.get_model(service, request)
