"""POST /rerank, /v1/rerank and /v2/rerank."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.pooling import PooledPrompts, input_tokens, pooled_prompts, pooled_requests
from octavo_inference.server.rerank.messages import RerankRequest, RerankResponse, RerankResult, TextDocument
from octavo_inference.server.rerank.similarity import similarities
from octavo_inference.server.service import Loaded, Service


async def rerank(service: Service, request: HttpRequest) -> Response:
    """Order documents by their relevance to a query."""
    body = await json_body.read(request, RerankRequest)
    loaded = service.require(body.model)
    tokens = await service.work(lambda: _tokens(loaded, body))
    prompts = pooled_prompts(service, request, pooled_requests(service, request, body, loaded, tokens))
    return await json_unless_gone(request.receive, _whole(service, body, prompts), {})


def _tokens(loaded: Loaded, body: RerankRequest) -> list[list[int]]:
    """Tokens of the query, then of each document."""
    keep, first = body.truncate_prompt_tokens, body.max_tokens_per_doc
    query = input_tokens(loaded, body.query, "query", keep)
    return [query, *(input_tokens(loaded, text, "documents", keep, first=first) for text in body.texts)]


async def _whole(service: Service, body: RerankRequest, prompts: PooledPrompts) -> bytes:
    texts = body.texts
    scores = await similarities(service, prompts, [(0, number) for number in range(1, len(texts) + 1)])
    # Equal scores keep the order of the documents.
    ranking = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    shown = body.return_documents is not False
    results = [RerankResult(index, scores[index], TextDocument(texts[index]) if shown else None) for index in ranking]
    return msgspec.json.encode(RerankResponse(f"rerank-{uuid.uuid4().hex}", body.model, results, prompts.usage))
