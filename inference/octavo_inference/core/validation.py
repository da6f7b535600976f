"""Validates requests; HTTP clients and callers of `LLM` get the same error text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo_inference.common.errors import RequestError
from octavo_inference.core.model_input import Int32
from octavo_inference.core.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_PRIORITY,
    MAX_PROMPT_LOGPROBS,
    MAX_TIMEOUT,
    Request,
    SamplingParams,
)
from octavo_inference.models.task import Task

MAX_SEQUENCES = 128


def check_sampling(sampling: SamplingParams, vocab: int) -> None:
    """Raise `RequestError` for the first parameter out of bounds."""
    _within("n", sampling.n, 1, MAX_SEQUENCES)
    _within("temperature", sampling.temperature, 0.0, 100.0)
    _within("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise RequestError("top_p must be above 0: it keeps the most likely tokens up to that share", "top_p")
    _within("top_k", sampling.top_k, -1, vocab)
    _within("min_p", sampling.min_p, 0.0, 1.0)
    _within("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _within("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _within("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0)
    if sampling.seed is not None:
        _within("seed", sampling.seed, -(2**63), 2**64 - 1)
    if sampling.max_tokens is not None:
        _within("max_tokens", sampling.max_tokens, 1, 2**31 - 1)
    most = 2**31 - 1 if sampling.max_tokens is None else sampling.max_tokens
    _within("min_tokens", sampling.min_tokens, 0, most)
    if sampling.logprobs is not None:
        _within("logprobs", sampling.logprobs, 0, min(MAX_LOGPROBS, vocab))
    if sampling.prompt_logprobs is not None:
        _within("prompt_logprobs", sampling.prompt_logprobs, 0, min(MAX_LOGPROBS, vocab))
    for token in sampling.stop_token_ids:
        _within("stop_token_ids", token, 0, vocab - 1)
    _check_bias(sampling, vocab)
    _check_bad_words(sampling, vocab)
    _check_allowed(sampling, vocab)
    _check_report(sampling, vocab)


def _check_bias(sampling: SamplingParams, vocab: int) -> None:
    _at_most("logit_bias", "token ids", len(sampling.logit_bias), MAX_LOGIT_BIAS)
    for token, bias in sampling.logit_bias:
        _within("logit_bias", token, 0, vocab - 1, "token id")
        _within("logit_bias", bias, -100.0, 100.0, f"bias of token id {token}")
    _distinct("logit_bias", [token for token, _ in sampling.logit_bias])


def _check_bad_words(sampling: SamplingParams, vocab: int) -> None:
    _at_most("bad_words", "sequences", len(sampling.bad_words), MAX_BAD_WORDS)
    _at_most("bad_words", "tokens in all sequences", sum(map(len, sampling.bad_words)), MAX_BAD_WORD_TOKENS)
    for number, word in enumerate(sampling.bad_words):
        if not word:
            raise RequestError(f"bad_words: sequence {number} has no tokens: leave it out", "bad_words")
        for token in word:
            _within("bad_words", token, 0, vocab - 1, "token id")


def _check_allowed(sampling: SamplingParams, vocab: int) -> None:
    allowed = sampling.allowed_token_ids
    for token in allowed:
        _within("allowed_token_ids", token, 0, vocab - 1, "token id")
    _distinct("allowed_token_ids", allowed)
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if allowed and banned.issuperset(allowed):
        raise RequestError(
            "allowed_token_ids: each of them is a sequence of bad_words, so no token is left: allow another one",
            "allowed_token_ids",
        )


def _check_report(sampling: SamplingParams, vocab: int) -> None:
    ids = sampling.logprob_token_ids
    _at_most("logprob_token_ids", "token ids", len(ids), MAX_LOGPROB_TOKEN_IDS)
    for token in ids:
        _within("logprob_token_ids", token, 0, vocab - 1, "token id")
    _distinct("logprob_token_ids", ids)
    if ids and sampling.logprobs:
        raise RequestError(
            f"logprobs is {sampling.logprobs} with logprob_token_ids, which report other tokens than the best ones: "
            "leave out one of both",
            "logprobs",
        )


def check_guidance(request: Request, vocab: int, *, compiles: bool) -> None:
    """Raise `RequestError` for guidance that cannot be followed. `compiles`: the engine can compile grammars."""
    guidance = request.guidance
    if guidance is None:
        return
    if guidance.grammar and not compiles:
        raise RequestError("this engine has no tokenizer to compile grammars with", "grammar")
    for token in guidance.after:
        _within("after", token, 0, vocab - 1, "token id")
    if guidance.thinking_budget is not None:
        _within("thinking_budget", guidance.thinking_budget, 0, 2**31 - 1)
        if not guidance.after:
            raise RequestError(
                f"thinking_budget is {guidance.thinking_budget} without `after`, the ids that end the thinking: give "
                "them, or leave it out",
                "thinking_budget",
            )


def check_task(request: Request, task: Task) -> None:
    """Raise `RequestError` if the request wants an answer of a model that predicts no tokens."""
    if task != "generate" and request.pooling is None:
        raise RequestError(
            f"this model {'gives embeddings' if task == 'embed' else 'scores pairs of texts'} and generates no text",
            "model",
        )


def check_pooling(request: Request, hidden_size: int) -> None:
    """Raise `RequestError` if the request wants an embedding and cannot have one. `hidden_size` 0: no model state."""
    if request.pooling is None:
        return
    if not hidden_size:
        raise RequestError("this model's hidden states cannot be read, so it gives no embeddings", "pooling")
    if request.sampling.n != 1:
        raise RequestError(f"n is {request.sampling.n}; a prompt has one embedding", "n")


def check_ids(request: Request, vocab: int) -> None:
    """Raise `RequestError` for a field with a token id that is not below `vocab`."""
    sampling, guidance = request.sampling, request.guidance
    named = {
        "prompt": request.tokens,
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "bad_words": [token for word in sampling.bad_words for token in word],
        "allowed_token_ids": sampling.allowed_token_ids,
        "logprob_token_ids": sampling.logprob_token_ids,
        "after": () if guidance is None else guidance.after,
    }
    for field, ids in named.items():
        highest = max(ids, default=-1)
        if highest >= vocab:
            raise RequestError(f"{field}: token id {highest} is outside the vocabulary of {vocab}", field)


def check_prompt(request: Request, vocab: int, max_model_len: int) -> Int32:
    """The prompt as an array. Raises `RequestError` if prompt and answer can never fit."""
    _within("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if request.timeout is not None:
        _within("timeout", request.timeout, 0.001, MAX_TIMEOUT)
    if not request.tokens:
        raise RequestError("the prompt is empty: at least one token is needed", "prompt")
    try:
        tokens = np.array(request.tokens, np.int32)
    except (OverflowError, TypeError, ValueError) as error:
        raise RequestError(f"the prompt is not a list of token ids: {error}", "prompt") from None
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise RequestError(f"token id {low if low < 0 else high} is outside the vocabulary of {vocab}", "prompt")
    if request.pooling is not None:
        if len(tokens) > max_model_len:
            raise RequestError(f"the prompt has {len(tokens)} tokens; this model takes {max_model_len}", "prompt")
        return tokens
    if len(tokens) >= max_model_len:
        raise RequestError(
            f"the prompt has {len(tokens)} tokens; this model serves {max_model_len} of prompt and answer together",
            "prompt",
        )
    per_token = 1 + (request.sampling.prompt_logprobs or 0)
    if request.sampling.prompt_logprobs is not None and len(tokens) * per_token > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"prompt_logprobs {per_token - 1} over {len(tokens)} prompt tokens are {len(tokens) * per_token} "
            f"log-probabilities; at most {MAX_PROMPT_LOGPROBS} are possible: lower prompt_logprobs or "
            "shorten the prompt",
            "prompt_logprobs",
        )
    answer = request.sampling.max_tokens
    if answer is not None and len(tokens) + answer > max_model_len:
        raise RequestError(
            f"{len(tokens)} prompt tokens and max_tokens {answer} are {len(tokens) + answer}; this model serves "
            f"{max_model_len} of both together: at most {max_model_len - len(tokens)} fit",
            "max_tokens",
        )
    return tokens


def _within(name: str, value: float, low: float, high: float, what: str = "") -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name}{what and f': {what}'} is {value}, it must be from {low} to {high}", name)


def _at_most(name: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(f"{name} has {count} {what}, at most {most} are possible", name)


def _distinct(name: str, ids: Sequence[int]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(token for token in ids if ids.count(token) > 1)
        raise RequestError(f"{name}: token id {twice} is in it more than once: give each id once", name)
