"""Cases of mixtures of experts: the router, the sort of tokens by expert, the products, and their sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from bench.gpu.cases.weights import KNOWN, Weights, weights
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, few_tokens
from octavo_inference.backends.cuda.kernels.expert_gemv import expert_gemv
from octavo_inference.backends.cuda.kernels.expert_linear import expert_linear
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks, sort_by_expert
from octavo_inference.backends.cuda.kernels.expert_sum import expert_sum
from octavo_inference.backends.cuda.kernels.gemv import suits
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile, LinearTile
from octavo_inference.backends.cuda.kernels.router import (
    Scoring,
    choose_experts,
    parts_size,
    router_logits,
    router_parts,
)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes of a published model."""

    name: str
    count: int
    chosen: int
    hidden: int
    inner: int
    scoring: Scoring = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    clamp: float | None = None


QWEN3_30B = Mixture("Qwen3-30B-A3B", 128, 8, 2048, 768)
MIXTRAL = Mixture("Mixtral-8x7B", 8, 2, 4096, 14_336)
GPT_OSS = Mixture("gpt-oss-20b", 32, 4, 2880, 2880, scoring="softmax_of_chosen", clamp=7.0)
DEEPSEEK = Mixture("DeepSeek-V3", 256, 8, 7168, 2048, scoring="sigmoid", groups=8, chosen_groups=4)


def choices(place: Place, tokens: int, mixture: Mixture) -> Tensor:
    """Experts of each token, in ascending order; on `meta` without values."""
    if place.device.type == "meta":
        return torch.empty((tokens, mixture.chosen), device=place.device, dtype=torch.int32)
    scores = torch.rand((tokens, mixture.count), device=place.device)
    return scores.topk(mixture.chosen, dim=1).indices.sort(dim=1).values.to(torch.int32)


@dataclass(frozen=True, slots=True)
class Routed:
    """The logits of tokens, and their experts."""

    mixture: Mixture
    tokens: int
    router: str = "bf16"

    def __str__(self) -> str:
        return f"{self.mixture.name} T={self.tokens}{' f32' * (self.router == 'f32')}"

    def logits(self, place: Place) -> Trial:
        """Prepare the trial of the product."""
        tokens, hidden = place.pick(self.tokens, min(self.tokens, 19)), place.pick(self.mixture.hidden, 96)
        count = place.pick(self.mixture.count, 12)
        x = place.randn(tokens, hidden)
        router = place.randn(count, hidden, dtype=torch.float32 if self.router == "f32" else None) * hidden**-0.5
        parts = place.empty(parts_size(tokens, count), dtype=torch.float32)

        def pairs() -> list[Pair]:
            split = router_parts(tokens)
            return [(parts[: split * tokens * count].view(split, tokens, count).sum(0), x.float() @ router.float().T)]

        # Both are multiplied in the type of the longer one.
        bound = 2e-5 if self.router == "bf16" else rounding(place.dtype)
        return Trial(lambda: router_logits(x, router, parts), pairs, bound, size_of(x, router))

    def choice(self, place: Place) -> Trial:
        """Prepare the trial of the choice."""
        mixture, tokens = self.mixture, place.pick(self.tokens, min(self.tokens, 19))
        parts = place.randn(router_parts(tokens), tokens, mixture.count, dtype=torch.float32)
        ids = place.empty(tokens, mixture.chosen, dtype=torch.int32)
        found = place.empty(tokens, mixture.chosen, dtype=torch.float32)
        slots = torch.zeros(tokens, device=place.device, dtype=torch.int64)
        load = torch.zeros(mixture.count, device=place.device, dtype=torch.int64)

        def launch() -> None:
            choose_experts(
                parts.view(-1), mixture.count, None, None, slots, ids, found, None, load, scoring=mixture.scoring,
                normalized=True, scale=1.0, groups=mixture.groups, chosen_groups=mixture.chosen_groups,
                best_two=mixture.groups > 1,
            )  # fmt: skip

        def pairs() -> list[Pair]:
            logits = parts.sum(0)
            if mixture.scoring == "softmax_of_chosen":
                best = logits.topk(mixture.chosen, dim=1).indices.sort(dim=1).values
                return [(ids, best), (found, torch.softmax(logits.gather(1, best), dim=1))]
            scores = torch.sigmoid(logits) if mixture.scoring == "sigmoid" else torch.softmax(logits, dim=1)
            grouped = scores.view(tokens, mixture.groups, -1)
            of_groups = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(2)
            kept = torch.zeros_like(of_groups).scatter(1, of_groups.topk(mixture.chosen_groups, dim=1).indices, 1.0)
            wanted = torch.where(kept[:, :, None] > 0, grouped, -1.0).view(tokens, -1)
            best = wanted.topk(mixture.chosen, dim=1).indices.sort(dim=1).values
            weight = scores.gather(1, best)
            return [(ids, best), (found, weight / weight.sum(1, keepdim=True))]

        return Trial(launch, pairs, 2e-5, size_of(parts, ids, found))


def sorted_choices(place: Place, mixture: Mixture, tokens: int) -> Trial:
    """Choices by expert, in blocks."""
    tokens = place.pick(tokens, 40)
    mixture = replace(mixture, count=place.pick(mixture.count, 9), chosen=place.pick(mixture.chosen, 3))
    ids, rows = choices(place, tokens, mixture), block_rows(tokens * mixture.chosen, mixture.count, place.dtype)
    most = most_blocks(ids.numel(), mixture.count, rows)
    blocks, places = (place.empty(size, dtype=torch.int32) for size in (most, most * rows))
    totals = place.empty(mixture.count, dtype=torch.int32)

    def pairs() -> list[Pair]:
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=mixture.count)
        needed = (counts + rows - 1) // rows
        owner = torch.arange(mixture.count, device=place.device).repeat_interleave(needed)
        found = places[: len(owner) * rows]
        return [(totals, counts), (blocks[: len(owner)], owner), (found[found >= 0], order)]

    return Trial(
        lambda: sort_by_expert(ids, totals, places, blocks, rows=rows), pairs, 0.0, size_of(ids, blocks, places)
    )


@dataclass(frozen=True, slots=True)
class Products:
    """Gate, up and activation of the choices of tokens, or with `down` the product that follows.

    `adapted`: numbers are added before the activation, to every other choice. A `tile` also says which kernel it is; by
    default both are those that the layers choose.
    """

    layout: str
    mixture: Mixture
    tokens: int
    down: bool = False
    tile: GemvTile | LinearTile | None = None
    adapted: bool = False

    def __str__(self) -> str:
        name = "down" if self.down else "gate_up"
        return f"{self.layout} {self.mixture.name} T={self.tokens} {name}{' adapted' * self.adapted}"

    @property
    def few(self) -> bool:
        """Whether the kernel is that for few tokens."""
        if self.tile is not None:
            return isinstance(self.tile, GemvTile)
        return self.tokens <= few_tokens(self.mixture.count, self.mixture.chosen)

    def sizes(self, place: Place) -> tuple[int, int, int, int]:
        """Number of experts, sides, rows of a side and columns."""
        wide, mixture = 3 * max(32, KNOWN[self.layout].group), self.mixture
        units = place.pick(mixture.hidden if self.down else mixture.inner, 21)
        k = place.pick(mixture.inner if self.down else mixture.hidden, wide)
        return place.pick(mixture.count, 3), 1 if self.down else 2, units, k

    def matrices(self, place: Place) -> Weights:
        """Matrices of all experts."""
        count, sides, units, k = self.sizes(place)
        return weights(place, KNOWN[self.layout], count * sides * units, k)

    def prepare(self, place: Place, given: Weights | None = None) -> Trial:
        """Prepare the trial, for `Case`; with `given` matrices, or new ones."""
        made, mixture = given or self.matrices(place), self.mixture
        count, sides, units, k = self.sizes(place)
        tokens, chosen = place.pick(self.tokens, min(self.tokens, 6)), place.pick(mixture.chosen, 2)
        gemv_tile = self.tile if isinstance(self.tile, GemvTile) else None
        linear_tile = self.tile if isinstance(self.tile, LinearTile) else None
        ids = choices(place, tokens, replace(mixture, count=count, chosen=chosen))
        x, out = place.randn(ids.numel() if self.down else tokens, k), place.empty(ids.numel(), units)
        rows = linear_tile.rows if linear_tile else block_rows(ids.numel(), count, place.dtype)
        most = most_blocks(ids.numel(), count, rows)
        blocks, places = (place.empty(size, dtype=torch.int32) for size in (most, most * rows))
        activation = None if self.down else "silu" if mixture.clamp is None else "clamped"
        limit = mixture.clamp or 0.0
        few = self.few and suits(x, made.matrix)
        bias = place.randn(len(made.matrix.values), dtype=torch.float32) if mixture.clamp else None
        added = place.randn(ids.numel(), sides * units), place.ints([n % 2 - 1 for n in range(ids.numel())])
        if not few and place.device.type != "meta":
            sort_by_expert(ids, place.empty(count, dtype=torch.int32), places, blocks, rows=rows)

        def launch() -> None:
            if few:
                expert_gemv(
                    x, made.matrix, bias, out, ids, None, sides=sides, activation=activation, limit=limit,
                    added=added if self.adapted else None, tile=gemv_tile,
                )  # fmt: skip
            else:
                expert_linear(
                    x, made.matrix, bias, out, places, blocks, None, experts=count, rows=rows, sides=sides,
                    activation=activation, limit=limit, added=added if self.adapted else None, tile=linear_tile,
                )  # fmt: skip

        def pairs() -> list[Pair]:
            dense = made.dense if few else made.dense.to(place.dtype).float()
            given = x.float() if self.down else x.float().repeat_interleave(chosen, 0)
            sums = given.new_empty(len(given), sides, units)
            for expert, matrix in enumerate(dense.view(count, sides * units, k)):
                own = ids.flatten() == expert
                sums[own] = (given[own] @ matrix.T).view(-1, sides, units)
            if bias is not None:
                sums = sums + bias.view(count, sides, units)[ids.flatten().long()]
            if self.adapted:
                sums = sums + (added[0].float() * (added[1] >= 0)[:, None]).view(sums.shape)
            if self.down:
                return [(out, sums[:, 0])]
            gate, up = sums[:, 0], sums[:, 1]
            if mixture.clamp is None:
                return [(out, silu(gate) * up)]
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return [(out, gate * torch.sigmoid(1.702 * gate) * (up + 1))]

        read = size_of(*made.matrix.planes) * min(ids.numel(), count) // count
        return Trial(launch, pairs, rounding(place.dtype), read + size_of(x, out))


def summed(place: Place, mixture: Mixture, tokens: int) -> Trial:
    """The weighted sum of a token's outputs, and of a shared MLP."""
    tokens, hidden = place.pick(tokens, 5), place.pick(mixture.hidden, 96)
    outputs, out = place.randn(tokens * mixture.chosen, hidden), place.randn(tokens, hidden)
    ids = torch.zeros((tokens, mixture.chosen), device=place.device, dtype=torch.int32)
    shares, gates = torch.rand((tokens, mixture.chosen), device=place.device), torch.rand(tokens, device=place.device)
    wide = (outputs.float().view(tokens, mixture.chosen, hidden) * shares[:, :, None]).sum(1)
    expected = wide + out.float() * gates[:, None]
    return Trial(
        lambda: expert_sum(outputs, ids, shares, gates, out, add=True),
        lambda: [(out, expected)],
        rounding(place.dtype),
        size_of(outputs, out, out),
    )


ROUTED = [Routed(mixture, tokens) for mixture in (QWEN3_30B, MIXTRAL, GPT_OSS, DEEPSEEK) for tokens in (1, 64, 2048)]
PRODUCTS = [
    *(
        Products(layout, mixture, tokens, down)
        for layout, mixture in (("dense", QWEN3_30B), ("dense", MIXTRAL), ("fp4 mxfp4", GPT_OSS))
        for tokens in (1, 8, 64, 512, 2048)
        for down in (False, True)
    ),
    *(
        Products(layout, QWEN3_30B, tokens, down)
        for layout in ("int4 q4_k", "int8 q6_k", "int8 q8_0", "fp8", "int4 gptq", "int4 awq", "fp8 blocks")
        for tokens in (1, 64, 2048)
        for down in (False, True)
    ),
    *(
        Products(layout, mixture, tokens, adapted=True)
        for layout, mixture in (("dense", QWEN3_30B), ("fp4 mxfp4", GPT_OSS))
        for tokens in (1, 64)
    ),
]
QUICK = {
    "dense Qwen3-30B-A3B T=64 gate_up adapted",
    "fp4 mxfp4 gpt-oss-20b T=1 gate_up adapted",
    "fp4 mxfp4 gpt-oss-20b T=64 gate_up adapted",
    "dense Qwen3-30B-A3B T=1 gate_up",
    "dense Qwen3-30B-A3B T=1 down",
    "dense Qwen3-30B-A3B T=64 gate_up",
    "dense Qwen3-30B-A3B T=2048 gate_up",
    "dense Mixtral-8x7B T=64 gate_up",
    "dense Mixtral-8x7B T=512 down",
    "fp4 mxfp4 gpt-oss-20b T=1 gate_up",
    "fp4 mxfp4 gpt-oss-20b T=64 gate_up",
    "fp4 mxfp4 gpt-oss-20b T=2048 gate_up",
    "int4 q4_k Qwen3-30B-A3B T=1 gate_up",
    "int4 q4_k Qwen3-30B-A3B T=64 gate_up",
    "int8 q6_k Qwen3-30B-A3B T=64 down",
    "fp8 Qwen3-30B-A3B T=1 gate_up",
    "fp8 Qwen3-30B-A3B T=2048 gate_up",
    "int4 awq Qwen3-30B-A3B T=2048 gate_up",
    "fp8 blocks Qwen3-30B-A3B T=64 gate_up",
}
CASES = [
    *(Case("router", str(shape), shape.logits, quick=shape.mixture == QWEN3_30B) for shape in ROUTED),
    Case("router", f"{QWEN3_30B.name} T=2048 f32", Routed(QWEN3_30B, 2048, "f32").logits, quick=True),
    *(Case("choose_experts", str(shape), shape.choice, quick=shape.tokens < 2048) for shape in ROUTED),
    *(
        Case(
            "sort_by_expert",
            f"{mixture.name} T={tokens}",
            partial(sorted_choices, mixture=mixture, tokens=tokens),
            quick=mixture == QWEN3_30B,
        )
        for mixture in (QWEN3_30B, MIXTRAL)
        for tokens in (8, 512, 2048)
    ),
    *(
        Case("expert_gemv" if shape.few else "expert_linear", str(shape), shape.prepare, quick=str(shape) in QUICK)
        for shape in PRODUCTS
    ),
    *(
        Case(
            "expert_sum",
            f"{QWEN3_30B.name} T={tokens}",
            partial(summed, mixture=QWEN3_30B, tokens=tokens),
            quick=tokens == 1,
        )
        for tokens in (1, 2048)
    ),
]
