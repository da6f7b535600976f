"""The endpoints of scores."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.rerank.messages import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from octavo_inference.server.rerank.rerank import rerank
from octavo_inference.server.rerank.score import score

_DOCUMENTS = ["Paris is the capital of France.", "Bread needs flour."]
_SCORE = {"text_1": "the capital of France", "text_2": _DOCUMENTS}
_RERANK = {"query": "the capital of France", "documents": _DOCUMENTS, "top_n": 1}

ENDPOINTS = (
    *(
        HttpEndpoint("POST", path, score, ScoreRequest, ScoreResponse, errors=(504,), example=_SCORE)
        for path in ("/score", "/v1/score")
    ),
    *(
        HttpEndpoint("POST", path, rerank, RerankRequest, RerankResponse, errors=(504,), example=_RERANK)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
)
