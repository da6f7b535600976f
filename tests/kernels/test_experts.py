"""The router, the sort by expert and the products of experts against plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, expert_tile, token_steps
from octavo_inference.backends.cuda.kernels.expert_gemv import expert_gemv
from octavo_inference.backends.cuda.kernels.expert_linear import expert_linear
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks, sort_by_expert
from octavo_inference.backends.cuda.kernels.expert_sum import expert_sum
from octavo_inference.backends.cuda.kernels.gemv import suits
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile, LinearTile
from octavo_inference.backends.cuda.kernels.router import choose_experts, parts_size, router_logits, router_parts
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Stored
from octavo_inference.backends.reference.feed_forward import choose
from octavo_inference.backends.reference.functions import activate
from octavo_inference.models.config import Activation
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import Experts
from octavo_inference.models.weights import Tensor, dequantize

from .grouped import GROUPINGS, grouped
from .stored import FORMATS, stored
from .test_grouped import on_device as grouped_on_device
from .test_linear import K_FORMATS, on_device

PLAIN = Experts(count=12, chosen=3, intermediate=32)
ROUTERS = {
    "softmax": PLAIN,
    "not normalized": replace(PLAIN, normalized=False, scale=1.5),
    "sigmoid": replace(PLAIN, scoring="sigmoid", normalized=False, chosen=1),
    "softmax of the chosen": replace(PLAIN, scoring="softmax_of_chosen", chosen=4),
    "softmax of the near": replace(PLAIN, scoring="softmax_of_near", near=0.9, normalized=False),
    "groups": replace(PLAIN, groups=4, chosen_groups=2, scale=2.5),
    "best two of groups": replace(
        PLAIN, scoring="sigmoid", groups=3, chosen_groups=2, group_score="best_two", chosen=5
    ),
    "all": replace(PLAIN, chosen=12),
}


def routed(
    experts: Experts,
    logits: Torch,
    correction: Torch | None = None,
    slots: Torch | None = None,
    *,
    shared: bool = False,
) -> tuple[Torch, Torch, Torch, Torch]:
    """Ids, weights, the shared MLP's weights and the load of `choose_experts`, for sums in one part."""
    tokens = len(logits)
    slots = torch.zeros(tokens, dtype=torch.int64) if slots is None else slots
    ids = torch.full((tokens, experts.chosen), -7, dtype=torch.int32)
    weights, shares = torch.full(ids.shape, float("nan")), torch.full((tokens,), float("nan"))
    load = torch.zeros(experts.count, dtype=torch.int64)
    parts = torch.zeros(router_parts(tokens), *logits.shape)
    parts[0], parts[-1] = logits - 0.25 * (len(parts) > 1), parts[-1] + 0.25 * (len(parts) > 1)
    if len(parts) == 1:
        parts[0] = logits
    choose_experts(
        parts,
        logits.shape[1],
        None,
        correction,
        slots,
        ids,
        weights,
        shares if shared else None,
        load,
        scoring=experts.scoring,
        normalized=experts.normalized,
        scale=experts.scale,
        groups=experts.groups,
        chosen_groups=experts.chosen_groups,
        best_two=experts.group_score == "best_two",
        near=experts.near,
    )
    return ids, weights, shares, load


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("tokens", [5, 17])
def test_choice_and_weights_are_those_of_the_reference(name: str, corrected: bool, tokens: int) -> None:
    experts = ROUTERS[name]
    torch.manual_seed(tokens)
    logits = torch.randn(tokens, experts.count)
    correction = torch.randn(experts.count) if corrected and not experts.scoring.startswith("softmax_of") else None
    ids, weights, _, load = routed(experts, logits, correction)
    for token in range(tokens):
        expected, expected_weights = choose(experts, logits[token], correction)
        order = torch.argsort(expected)
        assert ids[token].tolist() == expected[order].tolist()
        torch.testing.assert_close(weights[token], expected_weights[order], rtol=1e-5, atol=1e-7)
    assert load.tolist() == np.bincount(ids.flatten(), minlength=experts.count).tolist()


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    logits = torch.zeros(2, 12)
    logits[1, [5, 7, 9, 11]] = 1.0
    assert routed(PLAIN, logits)[0].tolist() == [[0, 1, 2], [5, 7, 9]]
    grouped = replace(PLAIN, groups=4, chosen_groups=1)
    assert routed(grouped, logits)[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_padding_chooses_no_expert_and_counts_for_none() -> None:
    slots = torch.tensor([3, -1, 0])
    ids, _, _, load = routed(PLAIN, torch.randn(3, 12), slots=slots)
    assert ids[1].tolist() == [-1, -1, -1]
    assert (ids[[0, 2]] >= 0).all()
    assert load.sum() == 6


def test_logits_that_are_no_numbers_choose_experts_that_exist() -> None:
    logits = torch.full((1, 12), float("nan"))
    for experts in (PLAIN, ROUTERS["groups"], ROUTERS["softmax of the chosen"]):
        ids, weights, _, _ = routed(experts, logits)
        assert ids.tolist() == [list(range(experts.chosen))]
        assert weights.isnan().all()


def test_the_last_row_of_the_router_is_the_gate_of_the_shared_mlp() -> None:
    logits = torch.randn(3, 13)
    ids, _, shares, _ = routed(PLAIN, logits, shared=True)
    torch.testing.assert_close(shares, torch.sigmoid(logits[:, 12]))
    assert torch.equal(ids, routed(PLAIN, logits[:, :12].contiguous())[0])


@pytest.mark.parametrize("router_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 16, 19])
def test_logits(record: Any, tokens: int, router_type: torch.dtype) -> None:
    torch.manual_seed(0)
    x, router = torch.randn(tokens, 200), torch.randn(37, 200).to(router_type)
    parts = torch.full((parts_size(tokens, 37),), float("nan"))
    router_logits(x, router, parts)
    found = parts[: router_parts(tokens) * tokens * 37].view(-1, tokens, 37).sum(0)
    expected = x.double() @ router.double().T
    record("router", (tokens, 37, 200), router_type, (found - expected).abs().max() / expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("tokens", "chosen", "count", "rows"), [(1, 2, 5, 4), (40, 3, 6, 16), (700, 2, 3, 64)])
def test_places_have_each_choice_once_by_expert(tokens: int, chosen: int, count: int, rows: int) -> None:
    """Sorted stably, in blocks that are full but for the last of each expert. Nothing else is written."""
    random = np.random.default_rng(tokens)
    ids = torch.from_numpy(np.array([random.permutation(count)[:chosen] for _ in range(tokens)], np.int32))
    ids[tokens // 2] = -1 if tokens > 1 else ids[0]
    most = most_blocks(tokens * chosen, count, rows)
    totals = torch.zeros(count, dtype=torch.int32)
    blocks, places = torch.full((most + 3,), -9, dtype=torch.int32), torch.full((most * rows + 3,), -9).int()
    sort_by_expert(ids, totals, places, blocks, rows=rows)
    expected_blocks, expected_places = [], []
    for expert in range(count):
        choices = torch.nonzero(ids.flatten() == expert).flatten().tolist()
        assert totals[expert] == len(choices)
        needed = -(-len(choices) // rows)
        expected_blocks += [expert] * needed
        expected_places += choices + [-1] * (needed * rows - len(choices))
    assert len(expected_blocks) <= most
    assert blocks.tolist() == expected_blocks + [-1] * (most - len(expected_blocks)) + [-9] * 3
    assert places[: len(expected_places)].tolist() == expected_places
    assert (places[len(expected_places) :] == -9).all()


@pytest.mark.parametrize(("choices", "experts", "rows"), [(1, 8, 16), (8, 128, 16), (200, 6, 16), (1000, 4, 128)])
def test_no_choices_fill_more_blocks(choices: int, experts: int, rows: int) -> None:
    random = np.random.default_rng(choices)
    most = most_blocks(choices, experts, rows)
    found = [
        sum(-(-n // rows) for n in np.bincount(random.integers(0, experts, choices), minlength=experts))
        for _ in range(50)
    ]
    worst = [1] * min(choices, experts)
    worst[-1] += choices - len(worst)
    assert max(found) <= most
    assert sum(-(-n // rows) for n in worst) == most


COUNT, CHOSEN, UNITS = 3, 2, 7


def products(
    rng: np.random.Generator,
    tensor: Tensor | GroupedMatrix,
    *,
    sides: int,
    tokens: int,
    by_choice: bool,
    ids: Torch | None = None,
) -> tuple[DeviceMatrix, Torch, Torch, Torch, Torch, Torch]:
    """A matrix of experts, rows of x by token or by choice, choices, and the sums [choices, sides, units]."""
    matrix = on_device(tensor) if isinstance(tensor, Tensor) else grouped_on_device(tensor)
    dense = torch.from_numpy(dequantize(tensor)).double()
    if ids is None:
        ids = torch.from_numpy(np.array([rng.permutation(COUNT)[:CHOSEN] for _ in range(tokens)], np.int32))
        ids[1:2] = -1
    x = torch.from_numpy(rng.standard_normal((tokens * (CHOSEN if by_choice else 1), tensor.shape[1]), np.float32))
    bias = torch.from_numpy(rng.standard_normal(len(dense), np.float32))
    weights = torch.from_numpy(rng.standard_normal(ids.numel(), np.float32))
    of_experts = dense.view(COUNT, sides, -1, dense.shape[1])[ids.flatten().long()]
    rows = x.double() if by_choice else x.double().repeat_interleave(CHOSEN, 0)
    sums = torch.einsum("csuk,ck->csu", of_experts, rows) * weights[:, None, None].double()
    sums += bias.double().view(COUNT, sides, -1)[ids.flatten().long()]
    return matrix, x, ids, weights, bias, sums


def found_products(
    few: bool,
    matrix: DeviceMatrix,
    x: Torch,
    ids: Torch,
    weights: Torch,
    bias: Torch,
    *,
    sides: int,
    activation: str | None,
    limit: float = 0.0,
    tile: Any = None,
) -> Torch:
    """[choices, units], of a kernel for few tokens or of the one for many; NaN where it wrote nothing."""
    wide = torch.full((ids.numel() + 1, matrix.rows // COUNT // sides + 3), float("nan"))
    out = wide[:-1, 1:-2]
    if few:
        assert suits(x, matrix)
        expert_gemv(
            x, matrix, bias, out, ids, weights, sides=sides, activation=activation, limit=limit,
            tile=tile or GemvTile(2, 1),
        )  # fmt: skip
    else:
        rows = tile.rows if tile else 16
        most = most_blocks(ids.numel(), COUNT, rows)
        places, blocks = torch.empty(most * rows, dtype=torch.int32), torch.empty(most, dtype=torch.int32)
        sort_by_expert(ids, torch.empty(COUNT, dtype=torch.int32), places, blocks, rows=rows)
        expert_linear(
            x, matrix, bias, out, places, blocks, weights, experts=COUNT, rows=rows, sides=sides,
            activation=activation, limit=limit, tile=tile,
        )  # fmt: skip
    assert wide[-1].isnan().all()
    assert wide[:, 0].isnan().all()
    assert wide[:, -2:].isnan().all()
    assert out[ids.flatten() < 0].isnan().all()
    return out


def close(found: Torch, expected: Torch, ids: Torch, bound: float) -> float:
    real = ids.flatten() >= 0
    error = float((found[real].double() - expected[real]).abs().max() / expected[real].abs().max())
    assert error <= bound
    return error


FEW_TOKENS = [False, True]
KINDS: dict[str, Any] = {
    **{f: (lambda rng, rows, f=f: stored(rng, f, rows, 512 if f in K_FORMATS else 288)) for f in FORMATS},
    **{n: (lambda rng, rows, g=g: grouped(rng, g, rows, 384)) for n, g in GROUPINGS.items() if n != "int4 of 96"},
}


@pytest.mark.parametrize("few", FEW_TOKENS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_experts(record: Any, kind: str, few: bool) -> None:
    """A matrix that is not gated, rows of x by choice, in every layout."""
    if few and kind in {"f32", "f16"}:
        pytest.skip("float32 weights have no kernel for few rows")
    rng = np.random.default_rng(3)
    matrix, x, ids, weights, bias, sums = products(
        rng, KINDS[kind](rng, COUNT * UNITS), sides=1, tokens=2, by_choice=True
    )
    found = found_products(few, matrix, x, ids, weights, bias, sides=1, activation=None)
    error = close(found, sums[:, 0], ids, 2**-10 if kind in K_FORMATS else 2e-5)
    record(f"expert {'gemv' if few else 'linear'} {kind}", (3, UNITS, x.shape[1]), "float32", error)


@pytest.mark.parametrize("few", FEW_TOKENS)
@pytest.mark.parametrize("kind", ["bf16", "q4_k", "q8_0", "mxfp4", "fp8 blocks"])
@pytest.mark.parametrize("activation", ["silu", "clamped"])
def test_gate_and_up_of_experts(kind: str, few: bool, activation: str) -> None:
    """Rows of x by token; both sides of an output are in one program."""
    rng = np.random.default_rng(4)
    matrix, x, ids, weights, bias, sums = products(
        rng, KINDS[kind](rng, COUNT * 2 * UNITS), sides=2, tokens=2 if few else 11, by_choice=False
    )
    gate, up = sums[:, 0], sums[:, 1]
    limit = float(gate.abs().median())
    found = found_products(few, matrix, x, ids, weights, bias, sides=2, activation=activation, limit=limit)
    if activation == "clamped":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    else:
        expected = activate("silu", gate) * up
    close(found, expected, ids, 2**-8 if kind in K_FORMATS else 5e-5)


@pytest.mark.parametrize("few", FEW_TOKENS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2"])
def test_experts_without_a_gate(few: bool, activation: Activation) -> None:
    rng = np.random.default_rng(5)
    matrix, x, ids, weights, bias, sums = products(
        rng, stored(rng, "bf16", COUNT * UNITS, 96), sides=1, tokens=2, by_choice=False
    )
    found = found_products(few, matrix, x, ids, weights, bias, sides=1, activation=activation)
    close(found, activate(activation, sums[:, 0]), ids, 2e-5)


def test_many_tokens_of_one_expert_fill_several_blocks() -> None:
    rng = np.random.default_rng(6)
    ids = torch.full((20, CHOSEN), 2, dtype=torch.int32)
    ids[:, 1] = 0
    tensor = stored(rng, "q4_0", COUNT * UNITS, 96)
    matrix, x, _, weights, bias, sums = products(rng, tensor, sides=1, tokens=20, by_choice=False, ids=ids)
    found = found_products(
        False, matrix, x, ids, weights, bias, sides=1, activation=None, tile=LinearTile(16, 16, 32, 1, 4, 1)
    )
    close(found, sums[:, 0], ids, 2e-5)


@pytest.mark.parametrize("few", FEW_TOKENS)
def test_a_token_does_not_depend_on_its_neighbours(few: bool) -> None:
    rng = np.random.default_rng(7)
    matrix, x, ids, weights, bias, _ = products(
        rng, stored(rng, "q4_0", COUNT * UNITS, 96), sides=1, tokens=5, by_choice=False
    )
    alone = found_products(few, matrix, x, ids, weights, bias, sides=1, activation=None)
    others, other_ids = -x, (ids + 1) % COUNT
    others[4], other_ids[4] = x[4], ids[4]
    found = found_products(few, matrix, others, other_ids, weights, bias, sides=1, activation=None)
    assert torch.equal(found[4 * CHOSEN : 5 * CHOSEN], alone[4 * CHOSEN : 5 * CHOSEN])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shared", [None, "as it is", "gated"])
def test_outputs_are_added_up_without_those_that_were_not_written(weighted: bool, shared: str | None) -> None:
    torch.manual_seed(0)
    outputs, weights, gates = torch.randn(3, 4, 1100), torch.rand(3, 4), torch.rand(3)
    ids = torch.arange(12, dtype=torch.int32).view(3, 4)
    ids[1] = -1
    outputs[1] = float("nan")
    out = torch.randn(3, 1100)
    expected = (outputs * (weights[:, :, None] if weighted else 1.0)).sum(1)
    expected[1] = 0
    if shared:
        expected += out * (gates[:, None] if shared == "gated" else 1.0)
    expert_sum(
        outputs.view(12, -1), ids, weights if weighted else None, gates if shared == "gated" else None, out,
        add=shared is not None,
    )  # fmt: skip
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["dense", "int4", "int8", "fp8", "fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_have_the_rows_of_blocks(form: Stored, dtype: torch.dtype) -> None:
    """And a server has launched each of them, once it has launched those of `token_steps`."""
    for chosen, count in ((8, 128), (2, 8), (4, 128), (1, 16), (10, 512)):
        steps = token_steps(chosen, count)
        found = {block_rows(n * chosen, count, dtype) for n in steps}
        for tokens in (1, 7, 64, 300, 1000, 5000, 8192):
            rows = block_rows(tokens * chosen, count, dtype)
            assert rows in found
            assert expert_tile(form, rows, dtype).rows == rows
            assert expert_tile(form, rows, dtype).split == 1
