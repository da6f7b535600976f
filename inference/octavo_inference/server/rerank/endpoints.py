"""The endpoints of scores."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.rerank.messages import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from octavo_inference.server.rerank.rerank import rerank
from octavo_inference.server.rerank.score import score

ENDPOINTS = (
    *(HttpEndpoint("POST", path, score, ScoreRequest, ScoreResponse) for path in ("/score", "/v1/score")),
    *(
        HttpEndpoint("POST", path, rerank, RerankRequest, RerankResponse)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
)
