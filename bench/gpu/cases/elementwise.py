"""Cases of norms, activations, batch preparation and block copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.kernels.block_copy import copy_blocks, gather_blocks, scatter_blocks
from octavo_inference.backends.cuda.kernels.head_norm import normalize_whole
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, add_normalize, normalize
from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare
from octavo_inference.backends.cuda.kernels.rows import LONGEST, write_rows

EPS = 1e-5
Activation = Literal["silu", "gelu_tanh"]
GATED: tuple[tuple[Activation, int], ...] = (("silu", 1536), ("silu", 14336), ("gelu_tanh", 9216))
Prepare = Callable[[Place], Trial]
_TABLES = 2


def normed(x: Tensor, norm: DeviceNorm | None) -> Tensor:
    """A norm in float64."""
    wide = x.double()
    if norm is None:
        return wide
    if norm.centred:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    wide = wide if norm.weight is None else wide * norm.weight.double()
    return wide if norm.bias is None else wide + norm.bias.double()


def norm_of(place: Place, width: int, *, centred: bool = False, bias: bool = False) -> DeviceNorm:
    """A norm of random weights."""
    return DeviceNorm(place.weight(width), place.randn(width, dtype=torch.float32) if bias else None, centred)


def norm(place: Place, tokens: int, hidden: int, *, centred: bool = False) -> Trial:
    x, given = place.randn(tokens, hidden, dtype=torch.float32), norm_of(place, hidden, centred=centred, bias=centred)
    out = place.empty(tokens, hidden)
    bound = rounding(place.dtype)
    return Trial(lambda: normalize(x, given, EPS, out), lambda: [(out, normed(x, given))], bound, size_of(x, out))


def add_norm(
    place: Place, tokens: int, hidden: int, *, output_norm: bool = False, norm: bool = True, centred: bool = False,
    keep: bool = False, factor: float = 0.5,
) -> Trial:  # fmt: skip
    """LayerNorm with biases if `centred`; `norm` is false for a sum that is not normalized."""
    residual, x = place.randn(tokens, hidden, dtype=torch.float32), place.randn(tokens, hidden)
    after = norm_of(place, hidden, centred=centred, bias=centred) if norm else None
    out = place.empty(tokens, hidden)
    inner = norm_of(place, hidden, centred=centred, bias=centred) if output_norm else None
    total = residual.double() + factor * normed(x, inner)
    return Trial(
        lambda: add_normalize(residual, x, factor, after, EPS, out, inner, keep=keep),
        lambda: [(out, normed(total, after)), (residual, normed(total, after) if keep else total)],
        rounding(place.dtype),
        2 * size_of(residual) + size_of(x, out),
    )


def activation(place: Place, kind: Activation, tokens: int, inner: int) -> Trial:
    gate_up, out = place.randn(tokens, 2 * inner, dtype=torch.float32), place.empty(tokens, inner)
    gate_up = (gate_up * 2).to(place.dtype)

    def pairs() -> list[Pair]:
        gate, up = gate_up.double().chunk(2, dim=1)
        active = silu(gate) if kind == "silu" else gelu(gate, approximate="tanh")
        return [(out, active * up)]

    return Trial(lambda: gated(gate_up, out, kind), pairs, rounding(place.dtype), size_of(gate_up, out))


def whole(place: Place, tokens: int, q_width: int, k_width: int) -> Trial:
    """Queries and keys of projections, normalized over all their heads in place."""
    qkv = place.randn(tokens, q_width + 2 * k_width)
    before, norms = qkv.clone(), [norm_of(place, width) for width in (q_width, k_width)]

    def pairs() -> list[Pair]:
        parts = [torch.split(each, [q_width, k_width, k_width], 1) for each in (qkv, before)]
        return [(found, normed(given, norm)) for found, given, norm in zip(*parts, [*norms, None], strict=True)]

    return Trial(
        lambda: normalize_whole(qkv, norms[0], norms[1], EPS, q_width=q_width, k_width=k_width),
        pairs,
        rounding(place.dtype),
        2 * size_of(qkv),
    )


def xielu(place: Place, tokens: int, inner: int) -> Trial:
    """The activation of an MLP without a gate."""
    up, out = (2 * place.randn(tokens, inner, dtype=torch.float32)).to(place.dtype), place.empty(tokens, inner)
    factors = torch.tensor([0.8, 0.4], device=place.device)

    def pairs() -> list[Pair]:
        x = up.double()
        return [(out, torch.where(x > 0, 0.8 * x * x, 0.4 * (torch.expm1(x) - x)) + 0.5 * x)]

    return Trial(lambda: gated(up, out, "xielu", factors), pairs, rounding(place.dtype), size_of(up, out))


def prepared(place: Place, queries: Sequence[int], lengths: Sequence[int], size: int, padding: int) -> Trial:
    """Tokens, positions and slots of a step, computed by a plain loop; sequences are in random rows of two tables."""
    random = np.random.default_rng(len(queries))
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    width = max(lengths) // size + 2
    table = random.integers(0, 2**31 - 1, (len(queries) + 2, _TABLES, width), dtype=np.int32)
    history = random.integers(-1, 9, (len(queries) + 2, max(lengths) + 3), dtype=np.int32)
    rows = random.permutation(len(queries) + 2)[: len(queries)].astype(np.int32)
    positions = [0] * (int(starts[-1]) + padding)
    tokens, slots = [0] * len(positions), [[-1] * len(positions) for _ in range(_TABLES)]
    for i, (count, length) in enumerate(zip(queries, lengths, strict=True)):
        for n in range(count):
            position = length - count + n
            positions[starts[i] + n] = position
            tokens[starts[i] + n] = max(0, int(history[rows[i], position]))  # -1 where logits were NaN
            for group in range(_TABLES):
                block = int(table[rows[i], group, position // size])
                slots[group][starts[i] + n] = block * size + position % size
    row, query_start, seq_len, known, blocks = (
        torch.from_numpy(x).to(place.device) for x in (rows, starts, np.array(lengths, np.int32), history, table)
    )
    found = [
        torch.full(shape, 77, dtype=dtype, device=place.device)
        for shape, dtype in (
            ((len(tokens),), torch.int32),
            ((len(tokens),), torch.int32),
            ((_TABLES, len(tokens)), torch.int64),
        )
    ]
    wanted = [torch.tensor(values) for values in (tokens, positions, slots)]
    moved = size_of(query_start, seq_len, blocks, *found)
    return Trial(
        lambda: prepare(row, query_start, seq_len, known, blocks, size, found[0], found[1], found[2]),
        lambda: list(zip(found, wanted, strict=True)),
        0.0,
        moved,
    )


def _prepared(sequences: int) -> Prepare:
    """Mixed lengths: every third sequence prefills 40 tokens, the others decode; 9 padding rows."""

    def case(place: Place) -> Trial:
        queries = [40 if i % 3 == 2 else 1 for i in range(place.pick(sequences, 4))]
        return prepared(place, queries, [q + 17 * i for i, q in enumerate(queries)], 16, 9)

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
    """Copies of blocks of Llama 8B's pool: 32 layers, 8 heads of 128, 16 tokens."""

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


def _norm(width: int, *, centred: bool = False) -> Prepare:
    return lambda place: norm(place, place.pick(2048, 3), place.pick(width, width // 16), centred=centred)


def _add_norm(width: int, **flags: bool) -> Prepare:
    return lambda place: add_norm(place, place.pick(2048, 3), place.pick(width, width // 16), **flags)


def _gated(kind: Activation, width: int) -> Prepare:
    return lambda place: activation(place, kind, place.pick(2048, 3), place.pick(width, 83))


CASES = [
    *(Case("rms_norm", f"H={width}", _norm(width), quick=width == 4096) for width in (576, 1024, 4096, 8192)),
    *(
        Case(
            "add_rms_norm", f"H={width}{' output norm' * inner}", _add_norm(width, output_norm=inner),
            quick=inner and width == 2304,
        )
        for width in (576, 2304, 4096) for inner in (False, True)
    ),
    Case("layer_norm", "H=4096", _norm(4096, centred=True), quick=True),
    Case("add_layer_norm", "H=4096", _add_norm(4096, centred=True), quick=True),
    Case("add_layer_norm", "H=1024 after the sum", _add_norm(1024, centred=True, keep=True)),
    Case("add_rms_norm", "H=4096 output norm alone", _add_norm(4096, output_norm=True, norm=False), quick=True),
    *(Case("gated", f"{kind} I={width}", _gated(kind, width), quick=width == 14336) for kind, width in GATED),
    Case("gated", "xielu I=21504", lambda place: xielu(place, place.pick(2048, 3), place.pick(21504, 83)), quick=True),
    Case(
        "normalize_whole", "5120 and 1024",
        lambda place: whole(place, place.pick(2048, 3), place.pick(5120, 96), place.pick(1024, 48)), quick=True,
    ),
    *(Case("prepare", f"B={count}", _prepared(count), quick=count == 256) for count in (1, 32, 256)),
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
]  # fmt: skip
