"""Scores of pairs of texts, by the model's own head if it has one, or the rule that the server is set to."""

from __future__ import annotations

from types import ModuleType

from starlette.requests import Request as HttpRequest

from octavo_inference.server.prompt_batch import PromptBatch, prompt_batch
from octavo_inference.server.prompts import SchedulingFields
from octavo_inference.server.rerank import cross_encoder, judgement, similarity
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Loaded, Service


class Relevance:
    """The pairs of one HTTP request, on their way to scores."""

    def __init__(self, service: Service, loaded: Loaded, pairs: list[Pair], limits: Limits) -> None:
        self._service = service
        self._loaded = loaded
        self._pairs = pairs
        self._limits = limits
        self._rule = _rule(loaded)

    async def batch(self, request: HttpRequest, body: SchedulingFields) -> PromptBatch:
        """The prompts to compute. Raises `ApiError`."""
        rule, loaded = self._rule, self._loaded
        tokens = await self._service.tokenise(request, rule.prompts(loaded, self._pairs, self._limits))
        return prompt_batch(self._service, request, rule.requests(self._service, request, body, loaded, tokens))

    async def scores(self, batch: PromptBatch) -> list[float]:
        """The scores, in the order of the pairs. Raises `ApiError`."""
        outputs = await batch.outputs()
        return await self._service.work(lambda: self._rule.scores(outputs, self._pairs))


def _rule(loaded: Loaded) -> ModuleType:
    if loaded.info.task == "score":
        return cross_encoder
    return judgement if loaded.text.relevance == "answer" else similarity
