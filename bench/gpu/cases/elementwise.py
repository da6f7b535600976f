"""Norms, activations, batch preparation and block copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from case import Case, Pair, Place, Trial, rounding, size_of
from torch import Tensor
from torch.nn.functional import gelu, silu

from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.kernels.block_copy import copy_blocks, gather_blocks, scatter_blocks
from octavo_inference.backends.cuda.kernels.norm import add_rms_norm, rms_norm
from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare
from octavo_inference.backends.cuda.kernels.rows import LONGEST, write_rows

EPS = 1e-5
Activation = Literal["silu", "gelu_tanh"]
GATED: tuple[tuple[Activation, int], ...] = (("silu", 1536), ("silu", 14336), ("gelu_tanh", 9216))
Prepare = Callable[[Place], Trial]


def normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight


def norm(width: int) -> Prepare:
    def case(place: Place) -> Trial:
        tokens, hidden = place.pick(2048, 3), place.pick(width, width // 16)
        x, weight, out = (
            place.randn(tokens, hidden, dtype=torch.float32),
            place.randn(hidden, dtype=torch.float32),
            place.empty(tokens, hidden),
        )
        return Trial(
            lambda: rms_norm(x, weight, EPS, out),
            lambda: [(out, normed(x, weight))],
            rounding(place.dtype),
            size_of(x, out),
        )

    return case


def add_norm(width: int, *, output_norm: bool) -> Prepare:
    def case(place: Place) -> Trial:
        tokens, hidden = place.pick(2048, 3), place.pick(width, width // 16)
        residual, weight = place.randn(tokens, hidden, dtype=torch.float32), place.randn(hidden, dtype=torch.float32)
        x, out = place.randn(tokens, hidden), place.empty(tokens, hidden)
        inner = place.randn(hidden, dtype=torch.float32) if output_norm else None
        total = residual + 0.5 * (x.float() if inner is None else normed(x, inner))
        return Trial(
            lambda: add_rms_norm(residual, x, 0.5, weight, EPS, out, inner),
            lambda: [(residual, total), (out, normed(total, weight))],
            rounding(place.dtype),
            2 * size_of(residual) + size_of(x, out),
        )

    return case


def activation(kind: Activation, width: int) -> Prepare:
    def case(place: Place) -> Trial:
        tokens, inner = place.pick(2048, 3), place.pick(width, 83)
        gate_up, out = place.randn(tokens, 2 * inner), place.empty(tokens, inner)

        def pairs() -> list[Pair]:
            gate, up = gate_up.float().chunk(2, dim=1)
            active = silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")
            return [(out, active * up)]

        return Trial(lambda: gated(gate_up, out, kind), pairs, rounding(place.dtype), size_of(gate_up, out))

    return case


def batch_prepared(sequences: int) -> Prepare:
    """Mixed lengths: every third sequence reads 40 tokens of its prompt, the others decode; 9 rows of padding."""

    def case(place: Place) -> Trial:
        count, size = place.pick(sequences, 4), 16
        queries = [40 if i % 3 == 2 else 1 for i in range(count)]
        lengths = [q + 17 * i for i, q in enumerate(queries)]
        width = -(-max(lengths) // size)
        table = torch.randperm(count * width).to(torch.int32).view(count, width)
        starts = [sum(queries[:i]) for i in range(count + 1)]
        positions = [lengths[i] - q + t for i, q in enumerate(queries) for t in range(q)]
        owner = torch.tensor([i for i, q in enumerate(queries) for _ in range(q)])
        at = torch.tensor(positions)
        slots = table[owner, at // size].long() * size + at % size
        padding = 9
        history = torch.randint(-1, 9, (count, max(lengths)), dtype=torch.int32)
        words = history[owner, at].clamp(min=0)
        tokens, where = (place.empty(len(at) + padding, dtype=torch.int32) for _ in range(2))
        found_slots = place.empty(len(at) + padding, dtype=torch.int64)
        row = place.ints(range(count))
        query_start, seq_len, blocks = place.ints(starts), place.ints(lengths), table.to(place.device)
        known = history.to(place.device)
        return Trial(
            lambda: prepare(row, query_start, seq_len, known, blocks, size, tokens, where, found_slots),
            lambda: [
                (tokens, torch.cat([words, torch.zeros(padding, dtype=torch.int32)])),
                (where, torch.cat([at, torch.zeros(padding, dtype=torch.int64)])),
                (found_slots, torch.cat([slots, torch.full((padding,), -1)])),
            ],
            0.0,
            size_of(query_start, seq_len, blocks, tokens, where, found_slots),
        )

    return case


def rows_written(place: Place) -> Trial:
    """Changes of a row table: one block each for many sequences, and some prompts in pieces."""
    rows, width = place.pick(256, 4), place.pick(4096, 1500)
    table = torch.randint(0, 99, (rows * width,), dtype=torch.int32)
    lengths = [1] * (rows - 2) + [LONGEST, 7]
    starts = [sum(lengths[:i]) for i in range(rows)]
    places = [i * width + 13 * i % (width - LONGEST) for i in range(rows)]
    runs = place.ints(
        [n for at, start, size in zip(places, starts, lengths, strict=True) for n in (at, 0, start, size)]
    )
    values = torch.randint(100, 200, (sum(lengths),), dtype=torch.int32)
    expected = table.clone()
    for at, start, size in zip(places, starts, lengths, strict=True):
        expected[at : at + size] = values[start : start + size]
    found, given = table.to(place.device), values.to(place.device)
    return Trial(
        lambda: write_rows(found, runs.view(rows, 4), given), lambda: [(found, expected)], 0.0, 2 * size_of(values)
    )


def moved_blocks(kind: Literal["copy", "gather", "scatter"], dtype: torch.dtype) -> Prepare:
    """Blocks of Llama 8B's pool: 32 layers, 8 heads of 128, 16 tokens."""

    def case(place: Place) -> Trial:
        count = place.pick(64, 3)
        shape = (place.pick(32, 2), 2 * count + 1, 2, place.pick(8, 2), 16, place.pick(128, 10))
        pool = torch.randint(-100, 100, shape, device=place.device, dtype=torch.int8)
        pool = pool if dtype == torch.int8 else pool.to(torch.float32).to(dtype)
        before = pool.clone()
        ids = torch.randperm(shape[1])[: 2 * count].to(torch.int32).to(place.device)
        pairs, chosen = ids.view(count, 2), ids[:count]
        saved = torch.randint_like(pool[:, :count].transpose(0, 1), -9, 9).contiguous()
        if kind == "copy":
            expected = before.clone()
            expected[:, pairs[:, 1].long()] = before[:, pairs[:, 0].long()]
            return Trial(lambda: copy_blocks(pool, pairs), lambda: same(pool, expected), 0.0, 2 * size_of(saved))
        if kind == "gather":
            expected = before[:, chosen.long()].transpose(0, 1)
            return Trial(
                lambda: gather_blocks(pool, chosen, saved), lambda: same(saved, expected), 0.0, 2 * size_of(saved)
            )
        expected = before.clone()
        expected[:, chosen.long()] = saved.transpose(0, 1)
        return Trial(lambda: scatter_blocks(saved, chosen, pool), lambda: same(pool, expected), 0.0, 2 * size_of(saved))

    return case


def same(found: Tensor, expected: Tensor) -> list[Pair]:
    """Compared as bytes."""
    return [(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))]


CASES = [
    *(Case("rms_norm", f"H={width}", norm(width), quick=width == 4096) for width in (576, 1024, 4096, 8192)),
    *(
        Case(
            "add_rms_norm",
            f"H={width}{' output norm' * inner}",
            add_norm(width, output_norm=inner),
            quick=inner and width == 2304,
        )
        for width in (576, 2304, 4096)
        for inner in (False, True)
    ),
    *(Case("gated", f"{kind} I={width}", activation(kind, width), quick=width == 14336) for kind, width in GATED),
    *(Case("prepare", f"B={count}", batch_prepared(count), quick=count == 256) for count in (1, 32, 256)),
    Case("write_rows", "256 sequences", rows_written, quick=True),
    *(
        Case(
            f"{kind}_blocks",
            str(dtype).removeprefix("torch."),
            moved_blocks(kind, dtype),
            quick=dtype == torch.bfloat16,
        )
        for kind in ("copy", "gather", "scatter")
        for dtype in (torch.bfloat16, torch.int8)
    ),
]
