"""Compares a quantized decoder with its float32 source over a text, and times its steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.backend import DEFAULT_BLOCK_SIZE, CpuBackend
from octavo_inference.config.engine import Dtype
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

Floats = NDArray[np.float64]

ROWS = (1, 16)
"""Decoding streams whose steps are timed."""
_CONTEXT = 256
_STEPS = 12


@dataclass(frozen=True, slots=True)
class Text:
    """Windows of token ids [windows, tokens], each a prompt of its own."""

    windows: NDArray[np.int64]

    @property
    def predictions(self) -> int:
        """Number of predicted tokens."""
        count, tokens = self.windows.shape
        return int(count * (tokens - 1))


class Comparison:
    """The source's predictions, with which each format is compared."""

    def __init__(self, config: ModelConfig, source: Weights, text: Text) -> None:
        self._config, self._text = config, text
        self._exact = [values.astype(np.float32) for values in _predictions(config, source, text, "float32")]

    def quality(self, weights: Weights) -> dict[str, float]:
        """Mean KL in nats, share of equal first choices, and the perplexities, with the native kernels' products."""
        divergence, equal, nats = 0.0, 0, np.zeros(2)
        for window, (stored, got) in enumerate(
            zip(self._exact, _predictions(self._config, weights, self._text, "auto"), strict=True)
        ):
            exact, following = stored.astype(np.float64), self._text.windows[window, 1:]
            rows = np.arange(len(following))
            divergence += float((np.exp(exact) * (exact - got)).sum())
            equal += int((exact.argmax(-1) == got.argmax(-1)).sum())
            nats -= (exact[rows, following].sum(), got[rows, following].sum())
        count = self._text.predictions
        before, after = np.exp(nats / count)
        return {"kl": divergence / count, "top1": equal / count, "before": float(before), "after": float(after)}


def speed(config: ModelConfig, weights: Weights) -> dict[str, Any]:
    """Output tokens per second of decoding streams, by their number; bits of a packed weight of the matrices."""
    backend = _backend(config, weights, "auto", max(ROWS) * (_CONTEXT // DEFAULT_BLOCK_SIZE + 1), max(ROWS))
    per_second = {str(rows): rows / _seconds(backend, _decode(rows)) for rows in ROWS}
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    elements = config.layers * (attention + 3 * config.hidden * config.intermediate) + config.hidden * config.vocab
    return {"tokens_per_second": per_second, "packed_bits": backend.weight_bytes * 8 / elements}


def _predictions(config: ModelConfig, weights: Weights, text: Text, dtype: Dtype) -> Iterator[Floats]:
    """Log-probabilities [tokens - 1, vocab] of each window."""
    count = text.windows.shape[1]
    backend = _backend(config, weights, dtype, -(-count // DEFAULT_BLOCK_SIZE), count)
    for window in text.windows:
        wide = backend.logits(_prompt(window))[:-1].astype(np.float64)
        wide -= wide.max(-1, keepdims=True)
        yield wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def _backend(config: ModelConfig, weights: Weights, dtype: Dtype, blocks: int, tokens: int) -> CpuBackend:
    return CpuBackend.create(
        config,
        weights,
        num_blocks=blocks,
        max_batched_tokens=tokens,
        max_running=tokens,
        max_model_len=blocks * DEFAULT_BLOCK_SIZE,
        dtype=dtype,
    )


def _seconds(backend: CpuBackend, batch: Batch) -> float:
    taken = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        backend.step(batch)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[2:]))


def _prompt(tokens: NDArray[np.int64]) -> Batch:
    """One sequence, with a sample row for each token."""
    count = len(tokens)
    numbers = np.arange(count, dtype=np.int32)
    return Batch(
        tokens=tokens.astype(np.int32),
        positions=numbers,
        slots=numbers[None],
        query_start=np.array([0, count], np.int32),
        seq_len=np.array([count], np.int32),
        block_table=np.arange(-(-count // DEFAULT_BLOCK_SIZE), dtype=np.int32)[None, None],
        sample=SampleRows.greedy(numbers, numbers + 1),
    )


def _decode(rows: int) -> Batch:
    """The next token of sequences of `_CONTEXT` tokens."""
    each = _CONTEXT // DEFAULT_BLOCK_SIZE + 1
    numbers = np.arange(rows, dtype=np.int32)
    positions = np.full(rows, _CONTEXT, np.int32)
    return Batch(
        tokens=numbers + 1,
        positions=positions,
        slots=(numbers * (each * DEFAULT_BLOCK_SIZE) + positions)[None],
        query_start=np.arange(rows + 1, dtype=np.int32),
        seq_len=positions + 1,
        block_table=np.arange(rows * each, dtype=np.int32).reshape(1, rows, each),
        sample=SampleRows.greedy(numbers, positions + 1),
    )
