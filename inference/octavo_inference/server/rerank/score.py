"""POST /score and /v1/score."""

from __future__ import annotations

import time
import uuid

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.pooling import PooledPrompts, input_tokens, pooled_prompts, pooled_requests
from octavo_inference.server.rerank.messages import Score, ScoreRequest, ScoreResponse
from octavo_inference.server.rerank.similarity import Pair, similarities
from octavo_inference.server.service import Service


async def score(service: Service, request: HttpRequest) -> Response:
    """Score pairs of texts by their similarity."""
    body = await json_body.read(request, ScoreRequest)
    loaded = service.require(body.model)
    pairs = body.pairs
    # A text that occurs in several pairs is computed once.
    positions: dict[str, tuple[int, str]] = {}
    for first, second in pairs:
        positions.setdefault(first, (len(positions), "text_1"))
        positions.setdefault(second, (len(positions), "text_2"))
    keep = body.truncate_prompt_tokens
    tokens = await service.work(
        lambda: [input_tokens(loaded, text, field, keep) for text, (_, field) in positions.items()]
    )
    prompts = pooled_prompts(service, request, pooled_requests(service, request, body, loaded, tokens))
    numbered = [(positions[first][0], positions[second][0]) for first, second in pairs]
    return await json_unless_gone(request.receive, _whole(service, body.model, prompts, numbered), {})


async def _whole(service: Service, model: str, prompts: PooledPrompts, pairs: list[Pair]) -> bytes:
    scores = await similarities(service, prompts, pairs)
    data = [Score(index, value) for index, value in enumerate(scores)]
    answer = ScoreResponse(f"score-{uuid.uuid4().hex}", int(time.time()), model, data, prompts.usage)
    return msgspec.json.encode(answer)
