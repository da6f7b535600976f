"""POST /v1/responses/input_tokens."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.http import json_response
from octavo_inference.server.openai_responses.conversation import conversation, input_tokens, room_for
from octavo_inference.server.openai_responses.request_body import InputTokensBody
from octavo_inference.server.openai_responses.resource import InputTokenCount
from octavo_inference.server.openai_responses.tools import tools_of
from octavo_inference.server.prompts import tenant_of
from octavo_inference.server.service import Service


async def count_input_tokens(service: Service, request: HttpRequest) -> Response:
    """Count the tokens of a prompt without generating."""
    body = await json_body.read(request, InputTokensBody)
    loaded = await service.require(body.model or service.names[0])
    items = await conversation(body, service.responses, tenant_of(service, request))
    room = room_for(body, loaded.info.max_model_len, None)
    [tokens] = await service.tokenise(request, [lambda: input_tokens(body, loaded, items, room, tools_of(body))])
    return json_response(msgspec.json.encode(InputTokenCount(len(tokens))))
