"""POST /score and /v1/score."""

from __future__ import annotations

import time
import uuid

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.prompt_batch import PromptBatch
from octavo_inference.server.rerank.messages import Score, ScoreRequest, ScoreResponse
from octavo_inference.server.rerank.relevance import Relevance
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Service


async def score(service: Service, request: HttpRequest) -> Response:
    """Score pairs of texts by the relevance of the second to the first."""
    body = await json_body.read(request, ScoreRequest)
    loaded = await service.require(body.model)
    pairs = [Pair(first, second, "text_1", "text_2") for first, second in body.pairs]
    relevance = Relevance(service, loaded, pairs, Limits(body.truncate_prompt_tokens))
    batch = await relevance.batch(request, body)
    return await json_unless_gone(request.receive, _whole(body.model, relevance, batch), {})


async def _whole(model: str, relevance: Relevance, batch: PromptBatch) -> bytes:
    data = [Score(index, value) for index, value in enumerate(await relevance.scores(batch))]
    answer = ScoreResponse(f"score-{uuid.uuid4().hex}", int(time.time()), model, data, batch.usage)
    return msgspec.json.encode(answer)
