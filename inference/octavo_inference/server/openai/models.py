"""GET /v1/models. Clients of the Anthropic API get its format."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.server.anthropic import models as anthropic
from octavo_inference.server.anthropic.errors import is_anthropic
from octavo_inference.server.errors import model_not_found
from octavo_inference.server.http import json_response
from octavo_inference.server.openai.responses import ModelList, ModelObject
from octavo_inference.server.service import Service


async def list_models(service: Service, request: Request) -> Response:
    """List all names of the model, and its adapters."""
    if is_anthropic(request.url.path, request.headers):
        return await anthropic.list_models(service, request)
    return json_response(msgspec.json.encode(ModelList([_model(service, name) for name in service.model_names])))


async def get_model(service: Service, request: Request) -> Response:
    """Get one model by name."""
    if is_anthropic(request.url.path, request.headers):
        return await anthropic.get_model(service, request)
    name = request.path_params["name"]
    if name not in service.model_names:
        raise model_not_found(name, service.names[0])
    return json_response(msgspec.json.encode(_model(service, name)))


def _model(service: Service, name: str) -> ModelObject:
    info = service.loaded.info if service.loaded else None
    limit, task = (None, None) if info is None else (info.max_model_len, info.task)
    if name not in service.names:
        return ModelObject(name, int(service.start_time), name, limit, task, service.names[0])
    return ModelObject(name, int(service.start_time), service.names[0], limit, task)
