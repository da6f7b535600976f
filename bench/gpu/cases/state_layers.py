"""Cases of state layers: convolution, Mamba-2 and gated delta nets over ragged batches, gated norm; token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from octavo_inference.backends.cuda.kernels.convolution import convolve
from octavo_inference.backends.cuda.kernels.delta_chunks import delta_chunks
from octavo_inference.backends.cuda.kernels.delta_decode import delta_decode
from octavo_inference.backends.cuda.kernels.gated_norm import gated_norm
from octavo_inference.backends.cuda.kernels.launch_configs import chunk_tile
from octavo_inference.backends.cuda.kernels.mamba2_chunks import mamba2_chunks
from octavo_inference.backends.cuda.kernels.mamba2_decode import mamba2_decode

Batch = tuple[tuple[int, int], ...]
"""(query tokens, tokens before them) of each sequence."""
Update = Callable[[Tensor, Tensor], Tensor]
"""(a token's inputs, the state [heads, ...], which it changes) -> the token's outputs; in float64."""

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences in random slots of a state, and the arrays that describe them; two more have no tokens."""

    batch: Batch
    own: list[int]
    row: Tensor
    query_start: Tensor
    seq_len: Tensor
    bounds: Tensor
    slots: int

    @classmethod
    def of(cls, batch: Batch, place: Place) -> Ragged:
        """The first sequences of one token are the decodes."""
        count, slots = len(batch), len(batch) + 3
        decodes = next((i for i, (queries, _) in enumerate(batch) if queries > 1), count)
        starts = [sum(queries for queries, _ in batch[:i]) for i in range(count + 1)]
        row = torch.randperm(slots - 1)[:count].tolist()
        return cls(
            batch,
            row,
            place.ints([*row, slots - 1, slots - 1]),
            place.ints([*starts, starts[-1], starts[-1]]),
            place.ints([*(sum(both) for both in batch), 0, 0]),
            place.ints([decodes, count]),
            slots,
        )

    @property
    def tokens(self) -> int:
        """All query tokens."""
        return sum(queries for queries, _ in self.batch)

    def state(self, place: Place, *shape: int) -> Tensor:
        """Random states of sequences with tokens before; the other slots hold NaN."""
        state = place.empty(self.slots, *shape, dtype=torch.float32)
        for i, (_, before) in enumerate(self.batch):
            if before:
                state[self.own[i]] = place.randn(*shape, dtype=torch.float32)
        return state

    def scan(self, inputs: Tensor, state: Tensor, width: int, update: Update) -> tuple[Tensor, Tensor]:
        """Outputs [tokens, width] and the states after it, all computed token by token in float64."""
        out, state, start = (
            torch.zeros(self.tokens, width, dtype=torch.float64, device=inputs.device),
            state.double(),
            0,
        )
        for i, (queries, before) in enumerate(self.batch):
            own = state[self.own[i]]
            if not before:
                own.zero_()
            for token in range(start, start + queries):
                out[token] = update(inputs[token].double(), own)
            start += queries
        return out, state


@dataclass(frozen=True, slots=True)
class StateCase:
    """A layer's kernels over a batch. `size` is (heads, rows, columns of a state, groups or key heads)."""

    kernel: Literal["convolve", "mamba2", "delta"]
    size: tuple[int, int, int, int]
    batch: Batch
    gates: bool = False

    def __str__(self) -> str:
        queries = max(queries for queries, _ in self.batch)
        text = "x".join(map(str, self.size)) if self.kernel != "convolve" else f"{self.size[0]} of {self.size[1]}"
        return f"{text}{' gates' * self.gates} B={len(self.batch)} q={queries}"

    def tiny(self) -> StateCase:
        """Few heads, short rows and short sequences."""
        _, rows, columns, groups = self.size
        batch = tuple((min(queries, 150 // len(self.batch) + 1), before) for queries, before in self.batch[:3])
        if self.kernel == "convolve":
            return replace(self, size=(300, rows, 0, 0), batch=batch)
        small = (4, min(rows, 24), min(columns, 20), 2 if groups > 1 else 1)
        return replace(self, size=small, batch=batch)

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        case = self.tiny() if place.tiny else self
        make = {"convolve": convolution, "mamba2": mamba2, "delta": delta}[case.kernel]
        return make(case, Ragged.of(case.batch, place), place)


def convolution(case: StateCase, batch: Ragged, place: Place) -> Trial:
    """`size` is (channels, taps)."""
    channels, taps = case.size[:2]
    projected, out = place.randn(batch.tokens + 1, 3 * channels), place.empty(batch.tokens + 1, channels)
    before, after, x = projected.chunk(3, dim=1)
    gates = (before, after) if case.gates else None
    weight, bias = place.randn(taps, channels, dtype=torch.float32), place.randn(channels, dtype=torch.float32)
    state = batch.state(place, taps - 1, channels)
    for slot, (_, tokens) in zip(batch.own, case.batch, strict=True):
        if tokens:
            state[slot, : max(0, taps - 1 - tokens)] = 0  # before the first token
    start = state.clone()

    def update(inputs: Tensor, kept: Tensor) -> Tensor:
        first, last, own = inputs.chunk(3)
        window = torch.cat([kept, (first * own if gates else own)[None]])
        kept.copy_(window[1:])
        mixed = (window * weight.double()).sum(0) + bias.double()
        return last * mixed if gates else silu(mixed)

    def pairs() -> list[Pair]:
        expected, kept = batch.scan(projected, start, channels, update)
        # The product with the gate is not rounded: the state has more digits than the inputs.
        return [(out[: batch.tokens], expected), (state, kept)]

    def launch() -> None:
        convolve(
            x, weight, bias, state, batch.row, batch.query_start, batch.seq_len, out, gates=gates,
            decodes=all(queries == 1 for queries, _ in batch.batch),
        )  # fmt: skip

    moved = size_of(out) * (4 if gates else 2) + 2 * size_of(state)
    return Trial(launch, pairs, rounding(place.dtype), moved)


def mamba2(case: StateCase, batch: Ragged, place: Place) -> Trial:
    """Decodes and prompts of a batch, each by its kernel."""
    heads, dim, columns, groups = case.size
    inner, shared = heads * dim, groups * columns
    x, projected = place.randn(batch.tokens, inner + 2 * shared), place.randn(batch.tokens, heads + 7)
    rate, step_bias = -torch.exp(place.randn(heads, dtype=torch.float32)), place.randn(heads, dtype=torch.float32)
    skip, out = place.randn(heads, dtype=torch.float32), place.empty(batch.tokens, inner)
    state, limits, dt = batch.state(place, heads, dim, columns), (0.01, 3.0), projected[:, 5 : heads + 5]
    start = state.clone()

    def update(inputs: Tensor, kept: Tensor) -> Tensor:
        own, b, c, step = torch.split(inputs, [inner, shared, shared, heads])
        own = own.view(heads, dim)
        b, c = (part.view(groups, 1, columns).repeat_interleave(heads // groups, 0) for part in (b, c))
        step = softplus(step + step_bias.double()).clamp(*limits)[:, None, None]
        kept.mul_(torch.exp(step * rate.double()[:, None, None])).add_(step * own[..., None] * b)
        return ((kept * c).sum(-1) + skip.double()[:, None] * own).view(-1)

    def pairs() -> list[Pair]:
        expected, kept = batch.scan(torch.cat([x, dt], 1), start, inner, update)
        return [(out, expected), (state, kept)]

    def launch() -> None:
        given = (x, dt, rate, step_bias, skip, state, batch.row, batch.query_start, batch.seq_len, batch.bounds, out)
        for kernel in (mamba2_decode, mamba2_chunks):
            kernel(*given, dt_limits=limits)

    # Chunks round the weights of other tokens, the state that a chunk reads, and what it adds to the state.
    return Trial(launch, pairs, max(1e-4, rounding(place.dtype, 3)), size_of(x, out) + 2 * size_of(state))


def delta(case: StateCase, batch: Ragged, place: Place) -> Trial:
    """Decodes and prompts of a batch, each by its kernels."""
    heads, key, value, key_heads = case.size
    keys, values = key_heads * key, heads * value
    x, projected = place.randn(batch.tokens, 2 * keys + values), place.randn(batch.tokens, 2 * heads + 7)
    rate, step_bias = -torch.exp(place.randn(heads, dtype=torch.float32)), place.randn(heads, dtype=torch.float32)
    state, steps = batch.state(place, heads, key, value), projected[:, 5 : 2 * heads + 5]
    out = place.empty(batch.tokens, values)
    solved = place.empty(batch.tokens, heads, chunk_tile(place.dtype).tokens)
    start = state.clone()

    def unit(part: Tensor) -> Tensor:
        part = part.view(key_heads, key)
        part = part / (part.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
        return part.repeat_interleave(heads // key_heads, 0)

    def update(inputs: Tensor, kept: Tensor) -> Tensor:
        q, k, v, b, a = torch.split(inputs, [keys, keys, values, heads, heads])
        q, k = unit(q) * key**-0.5, unit(k)
        kept.mul_(torch.exp(rate.double() * softplus(a + step_bias.double()))[:, None, None])
        change = (v.view(heads, value) - torch.einsum("hkv,hk->hv", kept, k)) * torch.sigmoid(b)[:, None]
        kept.add_(k[..., None] * change[:, None])
        return torch.einsum("hkv,hk->hv", kept, q).reshape(-1)

    def pairs() -> list[Pair]:
        expected, kept = batch.scan(torch.cat([x, steps], 1), start, values, update)
        return [(out, expected), (state, kept)]

    def launch() -> None:
        where = (state, batch.row, batch.query_start, batch.seq_len, batch.bounds, out)
        delta_decode(x, steps, rate, step_bias, *where)
        delta_chunks(x, steps, rate, step_bias, solved, *where)

    return Trial(launch, pairs, max(1e-4, rounding(place.dtype, 4)), size_of(x, out) + 2 * size_of(state))


def norm_of_groups(
    place: Place, groups: int, width: int, *, norm_first: bool, shared: bool, normed: bool = True
) -> Trial:
    tokens, groups, width = place.pick(2048, 3), place.pick(groups, min(groups, 2)), place.pick(width, 40)
    x, gate = place.randn(tokens, groups * width), place.randn(tokens, groups * width + 3)[:, 2:-1]
    weight = place.weight(width if shared else groups * width) if normed else None
    before = x.clone()

    def pairs() -> list[Pair]:
        wide, z = before.double().view(tokens, groups, width), silu(gate.double()).reshape(tokens, groups, width)
        wide = wide if norm_first else wide * z
        if weight is not None:
            wide = wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double().view(-1, width)
        return [(x, (wide * z if norm_first else wide).view(tokens, -1))]

    def launch() -> None:
        gated_norm(x, gate, weight, EPS, groups=groups, norm_first=norm_first)

    return Trial(launch, pairs, rounding(place.dtype), 3 * size_of(x))


def _norm(groups: int, width: int, *, norm_first: bool, shared: bool, normed: bool = True) -> Callable[[Place], Trial]:
    return lambda place: norm_of_groups(place, groups, width, norm_first=norm_first, shared=shared, normed=normed)


GRANITE, FALCON, NEMOTRON = (128, 64, 128, 1), (32, 128, 256, 2), (128, 64, 128, 8)
QWEN = (32, 128, 128, 16)
DECODES: Batch = tuple((1, 40 * (i % 5)) for i in range(32))
PROMPT: Batch = ((1000, 0),)
MIXED: Batch = ((1, 9), (1, 0), (300, 70), (2, 0), (64, 100), (129, 0))
SHAPES = [
    *(StateCase("mamba2", size, batch) for size in (GRANITE, FALCON, NEMOTRON) for batch in (DECODES, PROMPT)),
    StateCase("mamba2", GRANITE, MIXED),
    *(StateCase("delta", QWEN, batch) for batch in (DECODES, PROMPT, MIXED)),
    *(StateCase("convolve", (8448, 4, 0, 0), batch) for batch in (DECODES, MIXED)),
    *(StateCase("convolve", (8192, 4, 0, 0), batch) for batch in (DECODES, MIXED)),
    *(StateCase("convolve", (2048, 3, 0, 0), batch, gates=True) for batch in (DECODES, MIXED)),
]
QUICK = {str(SHAPES[i]) for i in (0, 2, 6, 7, 9, 11, 14, 15)}
CASES = [
    *(Case(shape.kernel, str(shape), shape.prepare, quick=str(shape) in QUICK) for shape in SHAPES),
    Case("gated_norm", "1 of 8192", _norm(1, 8192, norm_first=False, shared=False), quick=True),
    Case("gated_norm", "8 of 1024", _norm(8, 1024, norm_first=False, shared=False)),
    Case("gated_norm", "32 of 128, norm first", _norm(32, 128, norm_first=True, shared=True), quick=True),
    Case("gated_norm", "gate alone", _norm(1, 3072, norm_first=False, shared=False, normed=False)),
]
