"""Cases of paged attention, the split-KV reduction, and the kernel that writes K and V to the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from bench.gpu.cases.paged import expected, launcher, make, split
from octavo_inference.backends.cuda.kernels.decode_parts import LEAST_KEYS, shares_for
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm
from octavo_inference.backends.cuda.kernels.rope_and_cache import PLAIN, HeadRules, rope_store
from octavo_inference.backends.cuda.pool import allocate_pool

POOL_TYPES = {"dense": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Attention:
    """A batch: (query tokens, tokens before them) of each sequence, over a pool with a model's heads."""

    heads: int
    kv_heads: int
    dim: int
    batch: tuple[tuple[int, int], ...]
    pool: str = "dense"
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    chunk: int | None = None
    slopes: bool = False
    split: bool = False
    block_size: int = 16
    tile: AttentionTile | None = None

    def __str__(self) -> str:
        queries, contexts = [q for q, _ in self.batch], [c for _, c in self.batch]
        flags = [self.pool, f"window {self.window}" * bool(self.window), "softcap" * bool(self.softcap)]
        flags += [f"chunk {self.chunk}" * bool(self.chunk), "slopes" * self.slopes]
        flags += ["sinks" * self.sinks, "split" * self.split]
        text = f"{self.heads}/{self.kv_heads}x{self.dim} B={len(self.batch)} q={max(queries)} ctx={max(contexts)} "
        return text + " ".join(flag for flag in flags if flag)

    def tiny(self) -> Attention:
        """The same case with few sequences, blocks and heads; group size and flags stay."""
        group = min(3, self.heads // self.kv_heads)
        kv_heads = min(2, self.kv_heads)
        batch = tuple((min(q, 5), min(c, 37)) for q, c in self.batch[:2])
        dim = {64: 16, 80: 20, 96: 24, 128: 32, 256: 32}[self.dim]
        window = 7 if self.window else None
        chunk = 8 if self.chunk else None
        return replace(
            self, heads=group * kv_heads, kv_heads=kv_heads, dim=dim, batch=batch, window=window, chunk=chunk
        )

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        shape = self.tiny() if place.tiny else self
        return attention(shape, place)


def attention(shape: Attention, place: Place) -> Trial:
    lengths = [queries + before for queries, before in shape.batch]
    batch = make(
        [(length, queries) for length, (queries, _) in zip(lengths, shape.batch, strict=True)], shape.heads,
        shape.kv_heads, shape.dim, block_size=shape.block_size, dtype=place.dtype, kv_dtype=POOL_TYPES[shape.pool],
        device=place.device, shuffled=True,
    )  # fmt: skip
    how: dict[str, Any] = {"scale": shape.dim**-0.5, "window": shape.window, "softcap": shape.softcap}
    how |= {"chunk": shape.chunk} if shape.chunk else {}
    if shape.slopes:
        how["slopes"] = place.randn(shape.heads, dtype=torch.float32).abs() / 8
    if shape.sinks:
        how["sinks"] = place.randn(shape.heads, dtype=torch.float32)
    parts = None
    if all(queries == 1 for queries, _ in shape.batch):
        shares = shares_for(kv_heads=shape.kv_heads, processors=place.processors) if shape.split else 1
        least_keys = place.pick(LEAST_KEYS, 8) if shape.split else max(lengths)
        parts = split([(n, 1) for n in lengths], shares=shares, least_keys=least_keys, device=place.device)
    out, launch = launcher(batch, parts=parts, tile=shape.tile, **how)
    read = sum(lengths) * size_of(batch.pool.layer(0)[0][0]) // shape.block_size
    # Attention weights are rounded to the type of the values that they multiply, the sum once more.
    return Trial(
        launch, lambda: [(out, expected(batch, **how))], rounding(place.dtype, 2), read + size_of(batch.q, out)
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """Projections of some tokens, written to the pool."""

    heads: int
    kv_heads: int
    dim: int
    pool: str = "dense"
    norm: bool = False
    rotary: float = 1.0
    """Rotated share of a head."""
    centred: bool = False
    """The norm is a LayerNorm with a bias, and each head has its own weights."""
    rules: HeadRules = PLAIN

    def __str__(self) -> str:
        flags = f"{' norm' * self.norm}{' by head' * self.centred}{' last' * self.rules.normed_last}"
        flags += " clipped" * (self.rules.clip is not None) + " temperature" * (self.rules.temperature is not None)
        return f"{self.heads}/{self.kv_heads}x{self.dim} {self.pool}{flags} rotary {self.rotary}"

    def norm_of(self, place: Place, heads: int) -> DeviceNorm | None:
        """A norm over each of so many heads."""
        if not self.norm:
            return None
        count = self.dim * (heads if self.centred else 1)
        weight, bias = 1 + 0.1 * place.randn(count, dtype=torch.float32), place.randn(count, dtype=torch.float32)
        return DeviceNorm(weight, bias if self.centred else None, self.centred)

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        tokens, dim, size = place.pick(2048, 5), self.dim, 16
        heads, kv_heads = place.pick(self.heads, 3), place.pick(self.kv_heads, 1)
        blocks = tokens // size + 2
        kv, scales = allocate_pool(
            layers=1, num_blocks=blocks, kv_heads=kv_heads, block_size=size, head_dim=dim,
            dtype=POOL_TYPES[self.pool] or place.dtype, device=place.device,
        ).layer(0)  # fmt: skip
        qkv, q_out = place.randn(tokens, (heads + 2 * kv_heads) * dim), place.empty(tokens, heads, dim)
        rotary = int(dim * self.rotary)
        positions = torch.randint(0, 4000, (tokens,), device=place.device, dtype=torch.int32)
        angles = torch.rand(4000, rotary // 2, device=place.device) * 6.28
        table = torch.cat([angles.cos(), angles.sin()], dim=1) if rotary else None
        q_norm, k_norm = (self.norm_of(place, count) for count in (heads, kv_heads))
        slots = torch.randperm(blocks * size)[:tokens].to(place.device)

        def pairs() -> list[Pair]:
            q, k, v = torch.split(qkv.float().view(tokens, -1, dim), [heads, kv_heads, kv_heads], dim=1)
            q, k = (
                turned(each, given, table, positions, rules=self.rules) for each, given in ((q, q_norm), (k, k_norm))
            )
            q, v = heated(q, positions, self.rules), clipped(v, self.rules)
            found = kv.float() if scales is None else kv.float() * scales[..., None]
            rows = found.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, slots]
            return [(q_out, q), (rows, torch.stack([k, v]))]

        # int8 has an error of half a step of its head's 127, float8_e4m3fn of 16 in 448 for the largest values.
        bound = {"dense": 0.0, "int8": 0.5 / 127, "fp8": 16 / 448}[self.pool] + rounding(place.dtype)
        written = tokens * size_of(kv[0]) // size
        return Trial(
            lambda: rope_store(qkv, positions, slots, table, q_norm, k_norm, 1e-6, q_out, kv, scales, self.rules),
            pairs, bound,
            size_of(qkv, q_out) + written,
        )  # fmt: skip


def clipped(x: Tensor, rules: HeadRules) -> Tensor:
    """Values within the limit."""
    return x if rules.clip is None else x.clamp(-rules.clip, rules.clip)


def heated(q: Tensor, positions: Tensor, rules: HeadRules) -> Tensor:
    """Queries by the temperature of their positions."""
    if rules.temperature is None:
        return q
    floor, factor = rules.temperature
    return q * (1 + factor * torch.log1p(torch.floor((positions + 1) / floor)))[:, None, None]


def normed_heads(x: Tensor, norm: DeviceNorm | None, eps: float) -> Tensor:
    """A norm over each head of x [tokens, heads, dim]; weights [dim] or [heads * dim]."""
    if norm is None:
        return x
    x = x - x.mean(-1, keepdim=True) if norm.centred else x
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    x = x if norm.weight is None else x * norm.weight.view(-1, x.shape[-1])
    return x if norm.bias is None else x + norm.bias.view(-1, x.shape[-1])


def turned(
    x: Tensor, norm: DeviceNorm | None, table: Tensor | None, positions: Tensor, eps: float = 1e-6,
    rules: HeadRules = PLAIN,
) -> Tensor:  # fmt: skip
    """Heads [tokens, heads, dim] normalized, clipped and rotated, in float32."""
    first, last = (None, norm) if rules.normed_last else (norm, None)
    x = rotated(clipped(normed_heads(x, first, eps), rules), table, positions)
    return normed_heads(x, last, eps)


def rotated(x: Tensor, table: Tensor | None, positions: Tensor) -> Tensor:
    """Heads [tokens, heads, dim] rotated by the angles of their positions."""
    if table is None:
        return x
    rotary = table.shape[1]
    cos, sin = table[positions.long()][:, None].chunk(2, dim=-1)
    first, second = x[..., :rotary].chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., rotary:]], dim=-1)


def batch(sequences: int, queries: int, before: int, step: int = 37) -> tuple[tuple[int, int], ...]:
    """Sequences of different lengths, none a multiple of a block or tile."""
    return tuple((queries, max(0, before - step * i)) for i in range(sequences))


MODELS: Sequence[tuple[int, int, int]] = ((9, 3, 64), (14, 2, 64), (32, 8, 80), (32, 32, 96), (32, 8, 128), (8, 4, 256))
DECODE, PREFILL, FEW = batch(32, 1, 1900), batch(1, 512, 1003), batch(4, 1, 7001)
MIXED = (*batch(1, 400, 100), *batch(16, 1, 900))
STORED = [
    *(Stored(*model) for model in MODELS),
    *(Stored(32, 8, 128, pool=pool, norm=norm) for pool in ("fp8", "int8") for norm in (False, True)),
    Stored(16, 8, 128, norm=True),
    Stored(32, 32, 96, rotary=0.75),
    Stored(16, 4, 128, rotary=0.0),
    Stored(32, 8, 64, norm=True, centred=True, rotary=0.25),
    Stored(40, 8, 128, norm=True, rules=HeadRules(normed_last=True)),
    Stored(32, 8, 128, pool="fp8", rules=HeadRules(clip=1.0)),
    Stored(40, 8, 128, rotary=0.0, rules=HeadRules(temperature=(512.0, 0.1))),
]
SHAPES = [
    *(Attention(*model, DECODE) for model in MODELS),
    *(Attention(*model, FEW, split=True) for model in MODELS),
    *(Attention(*model, PREFILL) for model in MODELS),
    Attention(32, 8, 128, MIXED, block_size=32),
    *(
        Attention(32, 8, 128, kind, pool=pool, split=kind is FEW)
        for pool in ("fp8", "int8")
        for kind in (DECODE, FEW, PREFILL)
    ),
    *(Attention(8, 4, 256, kind, pool=pool) for pool in ("fp8", "int8") for kind in (DECODE, PREFILL)),
    *(Attention(8, 4, 256, kind, window=512, softcap=50.0) for kind in (DECODE, PREFILL)),
    *(Attention(8, 4, 256, FEW, window=512, softcap=50.0, split=True, pool=pool) for pool in ("dense", "int8")),
    *(Attention(64, 8, 64, kind, window=128, sinks=True, split=kind is FEW) for kind in (DECODE, FEW, PREFILL)),
    *(Attention(40, 8, 128, kind, chunk=512, split=kind is FEW) for kind in (DECODE, FEW, PREFILL)),
    *(Attention(32, 32, 128, kind, slopes=True, split=kind is FEW) for kind in (DECODE, FEW, PREFILL)),
]
QUICK = {
    str(shape)
    for shape in (
        Attention(9, 3, 64, DECODE),
        Attention(32, 8, 80, PREFILL),
        Attention(32, 32, 96, FEW, split=True),
        Attention(32, 8, 128, PREFILL),
        Attention(32, 8, 128, FEW, pool="fp8", split=True),
        Attention(8, 4, 256, PREFILL, pool="int8"),
        Attention(8, 4, 256, PREFILL, window=512, softcap=50.0),
        Attention(64, 8, 64, FEW, window=128, sinks=True, split=True),
        *(Attention(40, 8, 128, kind, chunk=512, split=kind is FEW) for kind in (FEW, PREFILL)),
        *(Attention(32, 32, 128, kind, slopes=True, split=kind is FEW) for kind in (FEW, PREFILL)),
    )
}
QUICK |= {str(Stored(8, 4, 256)), str(Stored(32, 8, 128, pool="fp8", norm=True)), *map(str, STORED[-4:])}
CASES = [
    *(Case("attend", str(s), s.prepare, float8=s.pool == "fp8", quick=str(s) in QUICK) for s in SHAPES),
    *(Case("rope_store", str(s), s.prepare, quick=str(s) in QUICK) for s in STORED),
]
