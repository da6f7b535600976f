"""Relevance by a model that reads both texts at once and scores them: a cross-encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.requests import Request as HttpRequest

from octavo_inference.common.vectors import vector_of
from octavo_inference.core.request import Output, Request
from octavo_inference.server.errors import context_overflow
from octavo_inference.server.pooling import check_keep, pooled_requests
from octavo_inference.server.prompts import SchedulingFields
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Loaded, Service
from octavo_inference.tokenizer.pairs import EncodedPair, encode_pair


def prompts(loaded: Loaded, pairs: Sequence[Pair], limits: Limits) -> list[Callable[[], EncodedPair]]:
    """Functions of the tokens of each pair, which raise `ApiError`."""
    return [partial(_prompt, loaded, pair, limits) for pair in pairs]


def requests(
    service: Service, request: HttpRequest, body: SchedulingFields, loaded: Loaded, inputs: list[EncodedPair]
) -> list[Request]:
    """Engine requests for the score of each pair. Raises `ApiError`."""
    found = pooled_requests(service, request, body, loaded, [pair.tokens for pair in inputs])
    return [msgspec.structs.replace(one, second_text=pair.second_text) for one, pair in zip(found, inputs, strict=True)]


def scores(outputs: Sequence[Output], pairs: Sequence[Pair]) -> list[float]:  # noqa: ARG001 -- as in `similarity`
    """The model's score of each pair."""
    return [vector_of(output.embedding or b"", normalize=False)[0] for output in outputs]


def _prompt(loaded: Loaded, pair: Pair, limits: Limits) -> EncodedPair:
    check_keep(limits.keep)
    limit = loaded.info.max_model_len
    # Texts that are surely too long are not tokenised.
    at_least = (len(pair.query) + len(pair.document)) // loaded.longest_token
    if limits.keep is None and limits.first is None and at_least > limit:
        raise context_overflow(at_least, 0, limit, pair.of_document)
    fitting = limits.keep is not None and limits.keep < 0
    found = encode_pair(
        loaded.text.tokenizer,
        pair.query,
        pair.document,
        keep=None if fitting else limits.keep,
        of_second=limits.first,
        limit=limit if fitting else None,
    )
    if len(found.tokens) > limit:
        raise context_overflow(len(found.tokens), 0, limit, pair.of_document)
    return found
