"""Compares the whole engine on the `cuda` backend with the reference: greedy tokens and logits of random models.

The engine completes a few prompts at once, in chunks and with a shared prefix. Then both backends compute each prompt
with its completion, and the test compares every position's token and logits. A token that is not the reference's choice
must be a tie to within `NEAR_TIE`, and the two distributions of the next token must agree (Kullback-Leibler
divergence). From the backend's own logits the sampler must choose the same tokens as the rule of all backends,
penalties and log-probabilities included. Blocks must return from the host unchanged.

`compare_tokens` checks tokens alone: of more sequences, in graphs of all sizes, with preemption and swap.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.checked_models import random_weights
from bench.lib.results import Row
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import Device
from octavo_inference.backends.cuda.graphs import CudaCapture
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.gather import gather
from octavo_inference.core.logit_rules import logit_rules
from octavo_inference.core.model_input import (
    Float32,
    Penalty,
    RowChange,
    RowSamples,
    RowStep,
    RowTable,
    sampling_columns,
)
from octavo_inference.core.request import SamplingParams
from octavo_inference.core.sampling import sample
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import PoolLayout, pool_layout
from octavo_inference.models.weights import Weights
from octavo_inference.tools.bench.loads import answer

NEAR_TIE = 0.1
"""Logits here are of size 1; bfloat16 activations move them by a few hundredths. In float32 no token may differ."""
DIVERGENCE = 1e-3
"""Mean Kullback-Leibler divergence from the reference, in nats: the bound that the design sets for bfloat16."""
SAMPLED = 0.02
"""Share of sampled tokens that may differ: a GPU's exponential differs from numpy's in the last bit."""
TURNED = 0.05
"""Share of a mixture's tokens that may be no near tie: rounding may turn a router's choice."""
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load: lengths of prompts in tokens, the length of their common prefix, output tokens of each.

    `blocks` is the size of the pool, by default enough for all sequences; `host_blocks` may be kept on the host.
    `apart`: sequence i gets i // apart more output tokens, so that sequences end one after the other.
    """

    prompts: tuple[int, ...]
    common: int
    out: int
    budget: int
    blocks: int | None = None
    host_blocks: int = 0
    apart: int | None = None

    @property
    def outputs(self) -> list[int]:
        """Output tokens of each sequence."""
        return [self.out + (i // self.apart if self.apart else 0) for i in range(len(self.prompts))]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(prompt + out for prompt, out in zip(self.prompts, self.outputs, strict=True))

    @property
    def needed(self) -> int:
        """Blocks that hold all sequences."""
        return sum(-(-(p + n) // BLOCK_SIZE) for p, n in zip(self.prompts, self.outputs, strict=True))


REAL = Load(prompts=(1, 16, 33, 90, 127, 201), common=32, out=16, budget=128)
TINY = Load(prompts=(3, 21), common=16, out=3, budget=24)
# Decodes of 256 rows, then of eight fewer in each step, so that all graphs are replayed.
WIDE = Load(prompts=tuple(3 + i % 4 for i in range(256)), common=0, out=3, budget=512, apart=8)
TINY_WIDE = Load(prompts=(3, 4, 5, 6, 3, 4), common=0, out=2, budget=48, apart=2)
# Half of the blocks that the sequences need; of the preempted ones some fit on the host, the others are recomputed.
SWAPPED = Load(prompts=(40,) * 16, common=0, out=56, budget=256, blocks=52, host_blocks=24)
TINY_SWAPPED = Load(prompts=(15, 15), common=0, out=19, budget=48, blocks=5, host_blocks=4)


def compare(config: ModelConfig, load: Load, dtype: torch.dtype, device: Device) -> Row:
    """Run one model on both backends: its tokens, distributions, sampler and block copies."""
    weights, prompts = random_weights(config), make_prompts(config, load)
    backend, row, answers = answered(config, weights, load, prompts, dtype, device)
    reference = reference_of(config, weights, load)
    exact = dtype == torch.float32
    row |= {"logit_error": 0.0, "sampled_wrong": 0, "logprob_error": 0.0, "blocks_moved": moves_blocks(backend)}
    divergences: list[NDArray[np.float64]] = []
    for prompt, tokens in zip(prompts, answers, strict=True):
        step = forced(prompt, tokens, reference.layout, load.longest)
        expected, found = reference.logits(gather(step)), backend.logits(step)
        count_tokens(row, expected, tokens)
        row["logit_error"] = max(row["logit_error"], float(np.abs(found - expected).max()))
        divergences.append(divergence(expected, found))
        wrong, error = sampled_wrong(
            backend, forced(prompt, tokens, reference.layout, load.longest, mixed=config.vocab)
        )
        row["sampled_wrong"] += wrong
        row["logprob_error"] = max(row["logprob_error"], error)
    every = np.concatenate(divergences)
    row |= {"divergence": float(every.mean()), "divergence_max": float(every.max()), "divergence_bound": DIVERGENCE}
    # Comparisons with NaN are false, so in this form a NaN fails.
    far = (TURNED if config.experts and not exact else 0) * row["tokens"]
    good = row["far"] <= far and row["divergence"] < DIVERGENCE and row["blocks_moved"]
    # On a GPU the decodes must have run in graphs, otherwise the graphs are untested.
    good = good and (device.torch.type != "cuda" or row["replays"] > 0)
    good = good and row["sampled_wrong"] <= (0 if exact else SAMPLED) * row["tokens"] and row["logprob_error"] < 1e-4
    return row | {"verdict": "ok" if good else "wrong"}


def compare_tokens(config: ModelConfig, load: Load, dtype: torch.dtype, device: Device) -> Row:
    """Run one model on both backends and compare tokens: of many sequences, in graphs, with preemptions.

    Every power of two of rows from 8 to the number of sequences must have been replayed as a graph, on a GPU; of a
    load with too few blocks, sequences must have been moved to the host, while a step was in flight.
    """
    weights, prompts = random_weights(config), make_prompts(config, load)
    _, row, answers = answered(config, weights, load, prompts, dtype, device)
    reference = reference_of(config, weights, load)
    for prompt, tokens in zip(prompts, answers, strict=True):
        count_tokens(row, reference.logits(gather(forced(prompt, tokens, reference.layout, load.longest))), tokens)
    good = row["far"] == 0
    if device.torch.type == "cuda":
        wanted = {2**i for i in range(3, len(prompts).bit_length()) if 2**i <= len(prompts)}
        good = good and (load.apart is None or wanted <= set(row["replayed"])) and row["overlap"]
    if load.blocks is not None:
        good = good and row["swaps"] > 0
    return row | {"verdict": "ok" if good else "wrong"}


def answered(
    config: ModelConfig, weights: Weights, load: Load, prompts: list[list[int]], dtype: torch.dtype, device: Device
) -> tuple[CudaBackend, Row, list[list[int]]]:
    """A backend, what its engine did with the load, and the greedy answers."""
    longest = load.longest
    backend = create(
        config, weights, dtype, device, blocks=load.blocks or (load.needed + 4) * len(pool_layout(config).groups),
        tokens=max(load.budget, longest), rows=max(len(prompts), load.out), length=longest,
    )  # fmt: skip
    limits = EngineLimits(
        max_model_len=longest, max_running=len(prompts), max_batched_tokens=load.budget, max_queued=len(prompts),
        host_blocks=load.host_blocks,
    )  # fmt: skip
    engine = Engine(backend, config, limits, clock=itertools.count().__next__)
    answers = answer(engine, prompts, load.outputs).tokens
    engine.check()
    row: Row = {"tokens": 0, "equal": 0, "far": 0, "gap": 0.0, "gap_bound": 0.0 if dtype == torch.float32 else NEAR_TIE}
    row |= {"overlap": engine.overlaps, "preemptions": engine.scheduler.preemptions, "swaps": engine.scheduler.swaps}
    return backend, row | graphs(backend), answers


def create(
    config: ModelConfig, weights: Weights, dtype: torch.dtype, device: Device, *, blocks: int, tokens: int, rows: int,
    length: int,
) -> CudaBackend:  # fmt: skip
    """A warm backend, with all its graphs on a GPU."""
    gpu = device.torch.type == "cuda"
    backend = CudaBackend.create(
        config, weights, num_blocks=blocks, block_size=BLOCK_SIZE, max_batched_tokens=tokens, max_running=rows,
        max_model_len=length, dtype=dtype, device=device, capture=CudaCapture(device.torch) if gpu else None,
    )  # fmt: skip
    if gpu:  # the interpreter compiles nothing, and its warm-up takes a minute
        backend.warm_up()
        while backend.idle():
            pass
    return backend


def reference_of(config: ModelConfig, weights: Weights, load: Load) -> ReferenceBackend:
    """The reference, with room for one sequence."""
    longest = load.longest
    blocks = (-(-longest // BLOCK_SIZE) + 1) * len(pool_layout(config).groups)
    sizes = {"num_blocks": blocks, "block_size": BLOCK_SIZE, "max_model_len": longest}
    return ReferenceBackend(config, weights, **sizes, state_slots=1)


def count_tokens(row: Row, expected: Float32, tokens: list[int]) -> None:
    """Add an answer to a row: tokens that are the reference's, those that are no tie, the largest gap to its best."""
    chosen = np.array(tokens)
    gaps = expected.max(axis=1) - expected[np.arange(len(tokens)), chosen]
    row["tokens"] += len(tokens)
    row["equal"] += int((expected.argmax(axis=1) == chosen).sum())
    row["far"] += int((~(gaps <= row["gap_bound"])).sum())  # NaN is far
    row["gap"] = max(row["gap"], float(gaps.max()))


def graphs(backend: CudaBackend) -> Row:
    """Number of captured graphs and of their replays, and the rows of those replayed."""
    captured = {} if backend.graphs is None else backend.graphs.captured
    replayed = sorted({shape.sequences for shape, one in captured.items() if one.replays})
    return {"graphs": len(captured), "replays": sum(one.replays for one in captured.values()), "replayed": replayed}


def make_prompts(config: ModelConfig, load: Load) -> list[list[int]]:
    """Random prompts that share their first `common` tokens, as far as their length permits."""
    rng = np.random.default_rng(1)
    shared = rng.integers(0, config.vocab, load.common).tolist()
    own = [rng.integers(0, config.vocab, length).tolist() for length in load.prompts]
    return [shared[:length] + tokens[len(shared) :] for length, tokens in zip(load.prompts, own, strict=True)]


def forced(
    prompt: list[int], tokens: list[int], layout: PoolLayout, longest: int, *, mixed: int | None = None
) -> RowStep:
    """A step that computes a prompt with its completion at once, and samples at each token that precedes one of it.

    Its tables of blocks, one for each group of layers, follow each other in the pool; each is as wide as one of
    `longest` tokens. Each sample has a row of its own, the first being the sequence's. All are greedy, or `mixed`, the
    size of the vocabulary.
    """
    read, count = [*prompt, *tokens[:-1]], len(tokens)
    length = len(read)
    table = RowTable.zeros(count, longest, BLOCK_SIZE, mixed or 0, groups=len(layout.groups))
    table.tokens[0, :length] = read
    table.blocks[0] = np.arange(table.blocks[0].size).reshape(table.blocks[0].shape)
    table.sampling[:] = sampling_columns()
    rows, query = np.arange(count, dtype=np.int32), np.arange(len(prompt) - 1, length, dtype=np.int32)
    samples = RowSamples(query, rows, query + 1, np.full(count, -1, np.int32), [None] * count)
    if mixed is not None:
        samples.logprobs[:] = 3
        samples.penalties[:] = mixed_rows(table, samples.position, mixed)
    changes: list[RowChange] = []
    for row in range(count):
        changes += [RowChange("tokens", row, 0, table.tokens[row]), RowChange("sampling", row, 0, table.sampling[row])]
        if samples.penalties[row] is not None:
            changes += [RowChange("rules", row, 0, table.rules[row]), RowChange("mask", row, 0, table.mask[row])]
    changes.append(RowChange("blocks", 0, 0, table.blocks[0].reshape(-1)))
    start, end = np.array([0, length], np.int32), np.array([length], np.int32)
    return RowStep(changes, rows[:1], start, end, samples, table)


def mixed_rows(table: RowTable, position: NDArray[np.int32], vocab: int) -> list[Penalty | None]:
    """Make thirds of the rows greedy, random, and random with penalties and rules over a random history: these."""
    rng = np.random.default_rng(2)
    penalties: list[Penalty | None] = []
    for row, before in enumerate(position.tolist()):
        kind = row % 3
        table.sampling[row] = sampling_columns(
            seed=row + 7,
            temperature=0.9 if kind else 0.0,
            top_p=0.9 if kind == 1 else 1.0,
            top_k=40 if kind == 2 else 0,
            min_p=0.01 if kind == 1 else 0.0,
        )
        if kind == 2:
            # As long as the tokens before the sampled one: the device writes the sampled token after them, into the
            # same row.
            table.tokens[row, :before] = rng.integers(0, vocab, before)
            banned = rng.integers(0, vocab, 2).astype(np.int32)
            rules = logit_rules(some_rules(vocab, table.tokens[row, before // 2 : before].tolist()), vocab)
            packed = rules.packed()
            table.rules[row, : len(packed)], table.mask[row] = packed, rules.mask
            penalties.append(Penalty(before // 2, before, 0.3, 0.2, 1.2, banned, rules=True, mask=True))
        else:
            penalties.append(None)
    return penalties


def some_rules(vocab: int, output: list[int]) -> SamplingParams:
    """Every kind of rule; one of the bad words is about to be completed."""
    return SamplingParams(
        logit_bias=((1, 2.0), (vocab - 1, -5.0)),
        allowed_token_ids=tuple(token for token in range(vocab) if token % 7),
        bad_words=((3,), (*output[-2:], 4), (5, 6)),
    )


def sampled_wrong(backend: CudaBackend, step: RowStep) -> tuple[int, float]:
    """Number of tokens where the backend's sampler differs from the rule, and the largest error of a logprob."""
    found = backend.launch(step).collect()
    tokens, logprob = found.tokens.copy(), found.logprob.copy()
    expected = sample(backend.logits(step), gather(step).sample)
    same = tokens == expected.tokens
    error = np.abs(logprob - expected.logprob)[same]
    return int((~same).sum()), float(error.max(initial=0.0))


def moves_blocks(backend: CudaBackend) -> bool:
    """Return True if a non-empty block stays unchanged on its way to the host, back, and through a copy."""
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
