"""POST /rerank, /v1/rerank and /v2/rerank."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.prompt_batch import PromptBatch
from octavo_inference.server.rerank.messages import RerankRequest, RerankResponse, RerankResult, TextDocument
from octavo_inference.server.rerank.relevance import Relevance
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Service


async def rerank(service: Service, request: HttpRequest) -> Response:
    """Order documents by their relevance to a query."""
    body = await json_body.read(request, RerankRequest)
    loaded = await service.require(body.model)
    pairs = [Pair(body.query, text, "query", "documents") for text in body.texts]
    relevance = Relevance(service, loaded, pairs, Limits(body.truncate_prompt_tokens, body.max_tokens_per_doc))
    batch = await relevance.batch(request, body)
    return await json_unless_gone(request.receive, _whole(body, relevance, batch), {})


async def _whole(body: RerankRequest, relevance: Relevance, batch: PromptBatch) -> bytes:
    texts, scores = body.texts, await relevance.scores(batch)
    # Equal scores keep the order of the documents.
    ranking = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    shown = body.return_documents is not False
    results = [RerankResult(index, scores[index], TextDocument(texts[index]) if shown else None) for index in ranking]
    return msgspec.json.encode(RerankResponse(f"rerank-{uuid.uuid4().hex}", body.model, results, batch.usage))
