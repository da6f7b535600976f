"""How far the distribution of a quantized model is from that of its source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Matrix
from octavo_inference.tools.quantize.decoder import Floats, logits

# Rows of logits that exist at a time.
_ROWS = 512


@dataclass(frozen=True, slots=True)
class OutputHead:
    """What turns hidden states into logits."""

    final_norm: Floats
    head: Matrix


@dataclass(frozen=True, slots=True)
class Quality:
    """Over `tokens` next-token predictions: perplexities, mean KL divergence in nats, share of equal first choices."""

    tokens: int
    perplexity_before: float
    perplexity_after: float
    mean_kl: float
    top1_agreement: float


def compare(
    config: ModelConfig, before: Floats, after: Floats, output: tuple[OutputHead, OutputHead], tokens: NDArray[np.int64]
) -> Quality:
    """`before` and `after`: last hidden states [windows, tokens, hidden] of both models, over the same `tokens`.

    `output`: that of each model.
    """
    count, nats, divergence, equal = 0, np.zeros(2), 0.0, 0
    for window in range(len(tokens)):
        for at in range(0, tokens.shape[1] - 1, _ROWS):
            end = min(at + _ROWS, tokens.shape[1] - 1)
            p = _log_softmax(logits(config, output[0].final_norm, output[0].head, before[window, at:end]))
            q = _log_softmax(logits(config, output[1].final_norm, output[1].head, after[window, at:end]))
            following = tokens[window, at + 1 : end + 1]
            rows = np.arange(end - at)
            nats -= np.array([p[rows, following].sum(dtype=np.float64), q[rows, following].sum(dtype=np.float64)])
            divergence += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
            equal += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
            count += end - at
    perplexities = np.exp(nats / count)
    return Quality(count, float(perplexities[0]), float(perplexities[1]), divergence / count, equal / count)


def _log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return result
