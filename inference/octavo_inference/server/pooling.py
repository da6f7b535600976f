"""Embeddings of an HTTP request: its texts as tokens, and their vectors from the engine."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request as HttpRequest

from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.server.errors import context_overflow, invalid
from octavo_inference.server.prompt_batch import PromptBatch
from octavo_inference.server.prompts import SchedulingFields, engine_requests
from octavo_inference.server.service import Loaded, Service
from octavo_inference.tokenizer.encoding import token_ids

MAX_INPUTS = 2048
"""Texts in one request, as in the OpenAI API."""
Input = str | list[int]


def input_tokens(
    loaded: Loaded, given: Input, field: str, keep: int | None = None, *, first: int | None = None
) -> list[int]:
    """The tokens of a text or of a token array: the first `first`, of those the last `keep`; None keeps all.

    With `keep` -1 it is as many as the context has. Raises `ApiError` for an empty input, for an unknown token, and for
    more tokens than the context has.
    """
    limit = loaded.info.max_model_len
    check_keep(keep)
    if isinstance(given, str):
        # A text that is surely too long is not tokenised.
        if keep is None and first is None and len(given) // loaded.longest_token > limit:
            raise context_overflow(len(given) // loaded.longest_token, 0, limit, field)
        tokens = token_ids(loaded.text.tokenizer, given)
    else:
        tokens = given
        unknown = next((token for token in tokens if token >= loaded.vocab_size), None)
        if unknown is not None:
            raise invalid(f"{field}: {unknown} is not a token; the vocabulary has {loaded.vocab_size}.", field)
    if not tokens:
        raise invalid(f"{field}: it is empty; give at least one token.", field)
    tokens = tokens[:first]
    if keep is not None:
        tokens = tokens[-(limit if keep < 0 else keep) :]
    if len(tokens) > limit:
        raise context_overflow(len(tokens), 0, limit, field)
    return tokens


def check_keep(keep: int | None) -> None:
    """Raise `ApiError` for a `truncate_prompt_tokens` that keeps nothing."""
    if keep == 0:
        raise invalid(
            "truncate_prompt_tokens: 0 leaves no prompt; give the number of tokens to keep, or -1 for all that fit.",
            "truncate_prompt_tokens",
        )


def pooled_requests(
    service: Service, request: HttpRequest, body: SchedulingFields, loaded: Loaded, inputs: list[list[int]]
) -> list[Request]:
    """The engine requests of an HTTP request for embeddings. Raises `ApiError`.

    Their cache policy is "batch" unless the body has one: texts to embed rarely share a prefix with later ones.
    """
    if not loaded.info.hidden_size:
        raise invalid("model: its hidden states cannot be read, so it gives no embeddings.", "model")
    sampling = [SamplingParams()] * len(inputs)
    requests = engine_requests(service, request, loaded, body, f"embd-{uuid.uuid4().hex}", inputs, sampling)
    return [
        msgspec.structs.replace(one, pooling=loaded.pooling, cache_policy=one.cache_policy or "batch")
        for one in requests
    ]


async def vectors(batch: PromptBatch) -> list[bytes]:
    """The pooled vectors of prompts from `pooled_requests`, float32. Raises `ApiError`."""
    return [output.embedding or b"" for output in await batch.outputs()]
