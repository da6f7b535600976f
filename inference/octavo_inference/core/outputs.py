"""Outputs of sequences: of their tokens, of their ends, and of their embeddings."""

from __future__ import annotations

import numpy as np

from octavo_inference.core.model_input import Float32, StepResult
from octavo_inference.core.request import FinishReason, Output, TokenLogprobs
from octavo_inference.core.sequence import Sequence
from octavo_inference.models.pooled_head import PooledHead


def token_output(
    sequence: Sequence,
    tokens: list[int],
    logprobs: TokenLogprobs | None,
    reason: FinishReason | None,
    stop: int | None,
    *,
    first: bool,
) -> Output:
    """Tokens of an answer. `first`: the answer begins with them."""
    return Output(
        id=sequence.request.id,
        index=sequence.index,
        tokens=tokens,
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=_prompt_logprobs(sequence),
        finish_reason=reason,
        stop_reason=stop,
        cached_tokens=sequence.cached,
        queued=sequence.first_start - sequence.arrived if first else 0.0,
    )


def end_output(sequence: Sequence) -> Output:
    """The end of an answer without another token."""
    return Output(
        id=sequence.request.id,
        index=sequence.index,
        tokens=[],
        logprobs=[] if sequence.request.sampling.reports_logprobs else None,
        prompt_logprobs=_prompt_logprobs(sequence),
        finish_reason="stop",
        cached_tokens=sequence.cached,
    )


def pooled_output(sequence: Sequence, total: Float32, head: PooledHead | None = None) -> Output:
    """The embedding or score of a prompt: `head` of the mean of its hidden states, or of one of them."""
    pooled = total / np.float32(sequence.prompt_len) if sequence.pooling == "mean" else total
    return Output(
        id=sequence.request.id,
        index=0,
        tokens=[],
        finish_reason="stop",
        cached_tokens=sequence.cached,
        embedding=(pooled if head is None else head(pooled)).astype("<f4").tobytes(),
    )


def token_logprobs(result: StepResult, row: int) -> TokenLogprobs:
    """The log-probabilities of a sample row."""
    top = result.top[row]
    ids, values = ([], []) if top is None else (top[0].tolist(), top[1].tolist())
    return TokenLogprobs(float(result.logprob[row]), int(result.rank[row]), ids, values)


def _prompt_logprobs(sequence: Sequence) -> list[TokenLogprobs | None] | None:
    """What the first output of a sequence carries; None for later ones and for sequences without."""
    scores = sequence.scores
    return None if scores is None or scores.reported else scores.report()
