"""The whole engine on the `cuda` backend beside the reference: greedy tokens and logits of random models.

The engine answers a few prompts at once, in chunks and with a prefix in common. Then both backends read each prompt
with its answer, and every position's token and logits are compared: a token that is not the reference's choice must be
a tie to within `NEAR_TIE`, and what the two believe of the next token must agree (Kullback-Leibler divergence). The
sampler must choose from the backend's own logits what the rule of all backends does, penalties and log-probabilities
included, and blocks must come back from the host as they went.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.checked_models import random_weights
from bench.lib.results import Row
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import Device
from octavo_inference.backends.cuda.graphs import CudaCapture
from octavo_inference.backends.reference import ReferenceBackend
from octavo_inference.core.engine import Engine, EngineLimits
from octavo_inference.core.model_input import Batch, Float32, LogitAdjust, SampleRows
from octavo_inference.core.sampling import sample
from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.bench.loads import answer

NEAR_TIE = 0.1
"""Logits here are of size 1; bfloat16 activations move them by a few hundredths. In float32 no token may differ."""
DIVERGENCE = 1e-3
"""Mean Kullback-Leibler divergence from the reference, in nats: the bound that the design sets for bfloat16."""
SAMPLED = 0.02
"""Share of sampled tokens that may differ: a GPU's exponential is not numpy's to the last bit."""
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is asked: lengths of prompts in tokens, how many of these all have in common, tokens out."""

    prompts: tuple[int, ...]
    common: int
    out: int
    budget: int


REAL = Load(prompts=(1, 33, 90, 201), common=32, out=32, budget=128)
TINY = Load(prompts=(3, 21), common=16, out=3, budget=24)


def compare(config: ModelConfig, load: Load, dtype: torch.dtype, device: Device) -> Row:
    """Run one model on both backends."""
    weights = random_weights(config)
    prompts = make_prompts(config, load)
    longest = max(load.prompts) + load.out
    blocks = sum(-(-(len(prompt) + load.out) // BLOCK_SIZE) for prompt in prompts) + 4
    backend = CudaBackend.create(
        config, weights, num_blocks=blocks, block_size=BLOCK_SIZE, max_batched_tokens=max(load.budget, longest),
        max_running=max(len(prompts), load.out), max_model_len=longest, dtype=dtype, device=device,
        capture=CudaCapture(device.torch) if device.torch.type == "cuda" else None,
    )  # fmt: skip
    if device.torch.type == "cuda":  # the interpreter compiles nothing, and takes a minute to
        backend.warm_up()
    limits = EngineLimits(
        max_model_len=longest, max_running=len(prompts), max_batched_tokens=load.budget, max_queued=len(prompts)
    )
    engine = Engine(backend, config, limits, clock=itertools.count().__next__)
    answers = answer(engine, prompts, [load.out] * len(prompts)).tokens
    engine.check()
    reference = ReferenceBackend(config, weights, num_blocks=blocks, block_size=BLOCK_SIZE, max_model_len=longest)
    exact = dtype == torch.float32
    row: Row = {"tokens": 0, "equal": 0, "gap": 0.0, "gap_bound": 0.0 if exact else NEAR_TIE, "logit_error": 0.0}
    divergences: list[NDArray[np.float64]] = []
    row |= graphs(backend)
    row |= {"sampled_wrong": 0, "logprob_error": 0.0, "blocks_moved": moves_blocks(backend)}
    for prompt, tokens in zip(prompts, answers, strict=True):
        batch = forced(prompt, tokens)
        expected, found = reference.logits(batch), backend.logits(batch)
        chosen = np.array(tokens)
        gaps = expected.max(axis=1) - expected[np.arange(len(tokens)), chosen]
        row["tokens"] += len(tokens)
        row["equal"] += int((expected.argmax(axis=1) == chosen).sum())
        row["gap"] = max(row["gap"], float(gaps.max()))
        row["logit_error"] = max(row["logit_error"], float(np.abs(found - expected).max()))
        divergences.append(divergence(expected, found))
        wrong, error = sampled_wrong(backend, replace(batch, sample=mixed_rows(batch.sample, config.vocab)))
        row["sampled_wrong"] += wrong
        row["logprob_error"] = max(row["logprob_error"], error)
    every = np.concatenate(divergences)
    row |= {"divergence": float(every.mean()), "divergence_max": float(every.max()), "divergence_bound": DIVERGENCE}
    # A comparison with NaN is false, so this way round a NaN fails.
    good = row["gap"] <= row["gap_bound"] and row["divergence"] < DIVERGENCE and row["blocks_moved"]
    # On a card its decodes must have been graphs, or nothing was said of them.
    good = good and (device.torch.type != "cuda" or row["replays"] > 0)
    good = good and row["sampled_wrong"] <= (0 if exact else SAMPLED) * row["tokens"] and row["logprob_error"] < 1e-4
    return row | {"verdict": "ok" if good else "wrong"}


def graphs(backend: CudaBackend) -> Row:
    """How many are captured, and how often they were launched."""
    captured = [] if backend.graphs is None else list(backend.graphs.captured.values())
    return {"graphs": len(captured), "replays": sum(one.replays for one in captured)}


def make_prompts(config: ModelConfig, load: Load) -> list[list[int]]:
    """Random prompts whose first `common` tokens are the same, as far as they reach."""
    rng = np.random.default_rng(1)
    shared = rng.integers(0, config.vocab, load.common).tolist()
    own = [rng.integers(0, config.vocab, length).tolist() for length in load.prompts]
    return [shared[:length] + tokens[len(shared) :] for length, tokens in zip(load.prompts, own, strict=True)]


def forced(prompt: list[int], tokens: list[int]) -> Batch:
    """A batch that reads a prompt and its answer at once; sampled rows are those whose next token is in the answer."""
    read = [*prompt, *tokens[:-1]]
    positions = np.arange(len(read), dtype=np.int32)
    rows = np.arange(len(prompt) - 1, len(read), dtype=np.int32)
    return Batch(
        tokens=np.array(read, np.int32),
        positions=positions,
        slots=positions,
        query_start=np.array([0, len(read)], np.int32),
        seq_len=np.array([len(read)], np.int32),
        block_table=np.arange(-(-len(read) // BLOCK_SIZE), dtype=np.int32)[None],
        sample=SampleRows.greedy(rows, rows + 1),
    )


def mixed_rows(rows: SampleRows, vocab: int) -> SampleRows:
    """The same rows, each third greedy, random, or random with penalties; all with log-probabilities."""
    count = len(rows.row)
    kind = np.arange(count) % 3
    rng = np.random.default_rng(2)

    def adjust(before: int) -> LogitAdjust:
        # As long as what is before the token: the device writes what it chose behind that, into the same row.
        sizes = (before // 2, before - before // 2, 2)
        prompt, output, banned = (rng.integers(0, vocab, size).astype(np.int32) for size in sizes)
        return LogitAdjust(prompt, output, 0.3, 0.2, 1.2, banned)

    return replace(
        rows,
        seed=np.arange(count, dtype=np.uint64) + np.uint64(7),
        temperature=np.where(kind == 0, 0.0, 0.9).astype(np.float32),
        top_p=np.where(kind == 1, 0.9, 1.0).astype(np.float32),
        top_k=np.where(kind == 2, 40, 0).astype(np.int32),
        min_p=np.where(kind == 1, 0.01, 0.0).astype(np.float32),
        logprobs=np.full(count, 3, np.int32),
        adjust=[adjust(before) if k == 2 else None for k, before in zip(kind, rows.position.tolist(), strict=True)],
    )


def sampled_wrong(backend: CudaBackend, batch: Batch) -> tuple[int, float]:
    """How many tokens the backend's sampler chooses otherwise than the rule, and the largest error of a logprob."""
    found = backend.step(batch)
    tokens, logprob = found.tokens.copy(), found.logprob.copy()
    expected = sample(backend.logits(batch), batch.sample)
    same = tokens == expected.tokens
    error = np.abs(logprob - expected.logprob)[same]
    return int((~same).sum()), float(error.max(initial=0.0))


def moves_blocks(backend: CudaBackend) -> bool:
    """Whether a block that holds something goes to the host, back into another, and into a third, without a change."""
    saved = backend.to_host([0, 1])
    backend.from_host(saved[:1], [2])
    backend.copy_blocks([(2, 3)])
    back = backend.to_host([0, 1, 2, 3])
    whole = bool((back[0] == back[2]).all() and (back[0] == back[3]).all() and (back[1] == saved[1]).all())
    return whole and bool(saved[0].any())


def divergence(expected: Float32, found: Float32) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of rows of logits from the expected ones, in nats."""
    p, q = log_softmax(expected), log_softmax(found)
    divergences: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return divergences


def log_softmax(logits: Float32) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
