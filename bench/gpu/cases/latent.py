"""Cases of latent attention: the kernel that stores latents, and attention over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.gpu.cases.attention import DECODE, FEW, PREFILL, turned
from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from bench.gpu.cases.paged import split
from octavo_inference.backends.cuda.kernels.decode_parts import LEAST_KEYS, shares_for
from octavo_inference.backends.cuda.kernels.latent_attention import attend_latents
from octavo_inference.backends.cuda.kernels.latent_heads import LATENT_HEADS, LATENT_PROGRAMS
from octavo_inference.backends.cuda.kernels.latent_store import latent_store
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size, partial_views
from octavo_inference.backends.cuda.pool import allocate_latents

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Latents:
    """A batch: (query tokens, tokens before them) of each sequence; sizes are those of a model."""

    heads: int
    rank: int
    rope: int
    batch: tuple[tuple[int, int], ...]
    split: bool = False
    tile: AttentionTile | None = None
    shares: int | None = None

    def __str__(self) -> str:
        queries, contexts = [q for q, _ in self.batch], [c for _, c in self.batch]
        shape = f"{self.heads}x({self.rank}+{self.rope}) B={len(self.batch)} q={max(queries)} ctx={max(contexts)}"
        return shape + " split" * self.split

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        batch = tuple((min(q, 5), min(c, 37)) for q, c in self.batch[:2])
        return _attention(replace(self, heads=3, rank=32, rope=16, batch=batch) if place.tiny else self, place)


def _attention(shape: Latents, place: Place) -> Trial:
    lengths = [queries + before for queries, before in shape.batch]
    tokens, sequences = sum(queries for queries, _ in shape.batch), len(lengths)
    columns = -(-max(lengths) // BLOCK)
    blocks = torch.randperm(sequences * columns).view(sequences, columns).to(torch.int32).to(place.device)
    pool = place.randn(sequences * columns, BLOCK, shape.rank + shape.rope)
    q, q_rope = place.randn(tokens, shape.heads, shape.rank), place.randn(tokens, shape.heads, shape.rope)
    out, row = place.empty(tokens, shape.heads, shape.rank), place.ints(range(sequences))
    starts = [0]
    for queries, _ in shape.batch:
        starts.append(starts[-1] + queries)
    query_start, seq_len = place.ints(starts), place.ints(lengths)
    parts, partial, scale = None, None, 0.05
    if all(queries == 1 for queries, _ in shape.batch):
        readers = -(-shape.heads // LATENT_HEADS)
        shares = shape.shares or shares_for(kv_heads=readers, processors=place.processors, programs=LATENT_PROGRAMS)
        shares = shares if shape.split else 1
        least_keys = place.pick(LEAST_KEYS, 8) if shape.split else max(lengths)
        parts = split([(n, 1) for n in lengths], shares=shares, least_keys=least_keys, device=place.device)
        if len(parts) > sequences:
            size = {"parts": len(parts), "heads": shape.heads, "head_dim": shape.rank}
            buffer = place.empty(partial_size(**size), dtype=torch.float32)
            partial = partial_views(buffer, **size)

    def launch() -> None:
        attend_latents(
            q, q_rope, pool, blocks, row, query_start, seq_len, out, scale=scale, parts=parts, partial=partial,
            tile=shape.tile,
        )  # fmt: skip

    def expected() -> Tensor:
        results = []
        for i, (queries, before) in enumerate(shape.batch):
            keys = pool[blocks[i].long()].flatten(0, 1)[: lengths[i]].float()
            given = slice(starts[i], starts[i + 1])
            scores = torch.cat([q[given], q_rope[given]], dim=-1).float() @ keys.T * scale
            seen = torch.arange(lengths[i], device=place.device) <= before + torch.arange(
                queries, device=place.device
            ).view(-1, 1, 1)
            weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
            results.append(weights @ keys[:, : shape.rank])
        return torch.cat(results)

    read = sum(lengths) * size_of(pool[0]) // BLOCK
    return Trial(launch, lambda: [(out, expected())], rounding(place.dtype, 2), read + size_of(q, q_rope, out))


@dataclass(frozen=True, slots=True)
class Stored:
    """Projections of some tokens, written to the pool."""

    heads: int
    nope: int
    rope: int
    rank: int

    def __str__(self) -> str:
        return f"{self.heads}x({self.nope}+{self.rope}), {self.rank}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        tokens, heads, rank = place.pick(2048, 5), place.pick(self.heads, 3), place.pick(self.rank, 32)
        nope, rope, blocks = place.pick(self.nope, 16), place.pick(self.rope, 16), tokens // BLOCK + 2
        sizes = {"layers": 1, "num_blocks": blocks, "block_size": BLOCK, "cached_dim": rank + rope}
        pool, _ = allocate_latents(**sizes, dtype=place.dtype, device=place.device).layer(0)
        q, down = place.randn(tokens, heads * (nope + rope)), place.randn(tokens, rank + rope)
        q_out, norm = place.empty(tokens, heads, rope), place.weight(rank)
        positions = torch.randint(0, 4000, (tokens,), device=place.device, dtype=torch.int32)
        angles = torch.rand(4000, rope // 2, device=place.device) * 6.28
        table = torch.cat([angles.cos(), angles.sin()], dim=1)
        slots = torch.randperm(blocks * BLOCK)[:tokens].to(place.device)

        def pairs() -> list[Pair]:
            latents = down[:, :rank].float()
            latents = latents * torch.rsqrt(latents.pow(2).mean(-1, keepdim=True) + 1e-6) * norm
            shared = turned(down[:, None, rank:].float(), None, table, positions)[:, 0]
            rotated = turned(q.view(tokens, heads, -1)[..., nope:].float(), None, table, positions)
            return [(pool.flatten(0, 1)[slots], torch.cat([latents, shared], dim=-1)), (q_out, rotated)]

        return Trial(
            lambda: latent_store(q, down, positions, slots, table, norm, 1e-6, q_out, pool), pairs,
            rounding(place.dtype), size_of(q, down, q_out) + tokens * size_of(pool[0]) // BLOCK,
        )  # fmt: skip


# DeepSeek V2-Lite, V3 (all heads, and those of a rank of eight), MiniCPM3, GLM-4.7-Flash.
MODELS: Sequence[tuple[int, int, int]] = ((16, 512, 64), (128, 512, 64), (40, 256, 32), (20, 512, 64))
SHAPES = [
    Latents(*model, batch, split=batch is FEW) for model in MODELS for batch in (DECODE, FEW, PREFILL)
]  # fmt: skip
STORED = [Stored(16, 128, 64, 512), Stored(128, 128, 64, 512), Stored(40, 64, 32, 256), Stored(20, 192, 64, 512)]
CASES = [
    *(Case("attend_latents", str(s), s.prepare, quick=s.heads in {16, 128}) for s in SHAPES),
    *(Case("latent_store", str(s), s.prepare, quick=s.heads == 16) for s in STORED),
]
