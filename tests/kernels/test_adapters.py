"""The products of adapters: blocks of rows with any slots, against sums in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.adapters import low_rank

from octavo_inference.backends.cuda.adapter_layout import AdaptedMatrix, slot_elements
from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.buffers import StepLimits, adapter_shapes
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels import adapter_configs
from octavo_inference.backends.cuda.kernels.adapter_rows import spread_slots
from octavo_inference.models.adapter import Adapter, LowRank, TokenRows

from ..unit.engine.echo import CONFIG  # noqa: TID252 -- tests are no package
from .conftest import Record

CPU = torch.device("cpu")
QKV = AdaptedMatrix(0, "qkv", ("q", "k", "v"), (200, 24, 40), 72)
DOWN = AdaptedMatrix(0, "down", ("down",), (72,), 136)
EMBEDDING = AdaptedMatrix(None, "embedding", ("embedding",), (72,), 61, by_column=True)
WIDE = AdaptedMatrix(0, "o", ("o",), (40,), 2200)  # its columns are split
MATRICES = (QKV, DOWN, EMBEDDING, WIDE)
NONE = -1


class Buffers:
    """The buffers of adapters alone."""

    def __init__(self, limits: StepLimits, dtype: torch.dtype) -> None:
        for name, shape in adapter_shapes(CONFIG, limits, dtype).items():
            found = torch.full(shape.shape, 77, dtype=shape.dtype)
            if shape.dtype == torch.float32:
                found.fill_(float("nan"))  # sums that no program wrote must not be read
            setattr(self, name, found)


def adapter(rng: np.random.Generator, ranks: dict[str, int], *, bias: tuple[str, ...] = ()) -> Adapter:
    shapes = {name: (rows, m.columns) for m in MATRICES for name, rows in zip(m.fields, m.rows, strict=True)}
    changes: dict[str, LowRank] = {}
    for name, rank in ranks.items():
        found = low_rank(rng, shapes[name], rank)
        vector = rng.standard_normal(shapes[name][0]).astype(np.float32) if name in bias else None
        changes[name] = LowRank(found.down, found.up, vector)
    embedding = changes.pop("embedding", None)
    return Adapter("", (changes,), embedding)


def slots_of(adapters: list[Adapter | None], dtype: torch.dtype, limits: StepLimits) -> DeviceAdapters:
    buffers: Any = Buffers(limits, dtype)
    found = DeviceAdapters(
        MATRICES, buffers, slots=len(adapters), max_rank=limits.adapter_rank, dtype=dtype, device=CPU
    )
    for slot, one in enumerate(adapters):
        found.load(slot, None if one is None else found.prepare(one))
    return found


def inputs_of(counts: list[int], padding: int) -> Inputs:
    starts = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32)
    empty = torch.empty(0, dtype=torch.int32)
    tokens = int(starts[-1]) + padding
    return Inputs(empty, starts, empty, empty, empty, empty, empty, empty, empty, empty, tokens, "mixed")


def limits_of(tokens: int, slots: int, rank: int) -> StepLimits:
    return StepLimits(tokens, 8, 64, 16, 1, 61, adapters=slots, adapter_rank=rank)


def changed(
    matrix: AdaptedMatrix, adapters: list[Adapter | None], rows: list[int], x: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    expected = out.double()
    for row, slot in enumerate(rows):
        one = adapters[slot] if slot >= 0 else None
        start = 0
        for name, count in zip(matrix.fields, matrix.rows, strict=True):
            change = None if one is None else one.layers[0].get(name)
            if change is not None:
                down, up = (torch.from_numpy(part).double() for part in (change.down, change.up))
                added = up @ (down @ x[row].double())
                if change.bias is not None:
                    added += torch.from_numpy(change.bias)
                expected[row, start : start + count] += added
            start += count
    return expected


def everyone(rng: np.random.Generator) -> list[Adapter | None]:
    """Small and large ranks, parts that are absent, and an empty slot."""
    return [
        adapter(rng, {"q": 8, "k": 8, "v": 8, "down": 8, "o": 5}),
        adapter(rng, {"q": 24, "v": 3, "o": 24}, bias=("v",)),
        None,
        adapter(rng, {"k": 20, "down": 21}, bias=("k", "down")),
    ]


@pytest.mark.parametrize(
    ("counts", "slots", "padding"),
    [
        ([1] * 7, [0, 1, 3, NONE, 1, 2, 0], 1),
        ([1, 1, 19, 5, 33], [3, NONE, 0, NONE, 1], 3),
        ([1], [NONE], 0),
        ([300, 30], [1, 3], 0),
    ],
    ids=["decodes", "prompts and decodes", "none", "many rows"],
)
@pytest.mark.parametrize("matrix", [QKV, DOWN, WIDE], ids=["qkv", "down", "wide"])
def test_changes_of_rows(
    counts: list[int], slots: list[int], padding: int, matrix: AdaptedMatrix, record: Record
) -> None:
    rng = np.random.default_rng(3)
    torch.manual_seed(3)
    adapters = everyone(rng)
    inputs = inputs_of(counts, padding)
    device = slots_of(adapters, torch.float32, limits_of(inputs.tokens, len(adapters), 24))
    device.begin(inputs, torch.tensor(slots, dtype=torch.int32))
    x = torch.randn(inputs.tokens, matrix.columns)
    out = torch.randn(inputs.tokens, sum(matrix.rows) + 5)[:, 2:-3]
    rows = [slot for slot, count in zip(slots, counts, strict=True) for _ in range(count)] + [NONE] * padding
    expected, before = changed(matrix, adapters, rows, x, out), out.clone()
    device.add(0, matrix.name, x, out)
    error = float((out - expected).abs().max())
    record("shrink + expand", f"{len(rows)} rows, {matrix.name}", torch.float32, error)
    assert error < 2e-5
    untouched = [row for row, slot in enumerate(rows) if slot in {NONE, 2}]
    assert torch.equal(out[untouched], before[untouched]), "rows without an adapter are not written"


def test_bfloat16(record: Record) -> None:
    rng = np.random.default_rng(4)
    torch.manual_seed(4)
    adapters: list[Adapter | None] = [adapter(rng, {"q": 8, "k": 16, "v": 5}, bias=("q",))]
    inputs = inputs_of([3, 2], 0)
    device = slots_of(adapters, torch.bfloat16, limits_of(5, 1, 16))
    device.begin(inputs, torch.tensor([0, NONE], dtype=torch.int32))
    x = torch.randn(5, QKV.columns).bfloat16()
    out = torch.zeros(5, sum(QKV.rows), dtype=torch.bfloat16)
    expected = changed(QKV, adapters, [0, 0, 0, NONE, NONE], x, out)
    device.add(0, "qkv", x, out)
    error = float((out - expected).abs().max())
    record("shrink + expand", "5 rows, qkv", torch.bfloat16, error)
    assert error < 0.05


def test_embeddings_of_tokens() -> None:
    rng = np.random.default_rng(5)
    adapters: list[Adapter | None] = [adapter(rng, {"q": 2}), adapter(rng, {"embedding": 11})]
    inputs = inputs_of([1, 4, 2], 1)
    device = slots_of(adapters, torch.float32, limits_of(8, 2, 16))
    device.begin(inputs, torch.tensor([1, 0, 1], dtype=torch.int32))
    tokens = torch.tensor([60, 1, 2, 3, 4, 0, 33, 0], dtype=torch.int32)
    out = torch.ones(8, 72)
    device.add_embedding(tokens, out, 3.0)
    one = adapters[1]
    assert one is not None
    assert one.embedding is not None
    added = 3.0 * one.embedding.merged.T[tokens.numpy()]
    added[[1, 2, 3, 4, 7]] = 0
    np.testing.assert_allclose(out.numpy() - 1, added, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_tokens_are_written_over_what_is_there(dtype: torch.dtype) -> None:
    """More ids than a program has, rows of other adapters and without any, and biases."""
    rng = np.random.default_rng(9)
    torch.manual_seed(9)
    ids = np.sort(rng.permutation(61)[:45]).astype(np.int32)
    rows, bias = rng.standard_normal((45, 72)).astype(np.float32), rng.standard_normal(45).astype(np.float32)
    own = replace(adapter(rng, {"q": 2}), embedding_rows=TokenRows(ids, rows), lm_head_rows=TokenRows(ids, rows, bias))
    other = replace(own, embedding_rows=None, lm_head_rows=TokenRows(ids[:1], rows[:1]))
    inputs = inputs_of([1, 4, 2], 1)
    device = slots_of([adapter(rng, {"q": 2}), own, other], dtype, limits_of(8, 3, 16))
    device.begin(inputs, torch.tensor([1, 0, 2], dtype=torch.int32))
    tokens = torch.tensor([ids[3], *ids[:6], 0], dtype=torch.int32)
    out, learned = torch.ones(8, 72), torch.randn(10, 72).to(dtype)
    device.replace_embedding(tokens, out, 3.0, torch.arange(2, 10, dtype=torch.int32), learned)
    rounded = torch.from_numpy(rows).to(dtype)
    torch.testing.assert_close(out[0], 3 * rounded[3].float() + learned[2].float())
    assert (out[1:] == 1).all()
    x, logits = torch.randn(8, 72).to(dtype), torch.full((8, 70), 7.0)[:, 3:64]
    device.replace_logits(x, logits)
    wanted = torch.full((8, 61), 7.0)
    wanted[0, ids] = rounded.float() @ x[0].float() + torch.from_numpy(bias)
    wanted[5:7, ids[0]] = x[5:7].float() @ rounded[0].float()
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    device.load(1, None)
    device.replace_embedding(tokens, out, 3.0, torch.arange(8, dtype=torch.int32), None)
    torch.testing.assert_close(out[0], 3 * rounded[3].float() + learned[2].float())


def test_sample_rows_are_sorted_by_their_tokens() -> None:
    rng = np.random.default_rng(6)
    torch.manual_seed(6)
    adapters = everyone(rng)
    inputs = inputs_of([1, 3, 2], 0)
    device = slots_of(adapters, torch.float32, limits_of(6, 4, 24))
    device.begin(inputs, torch.tensor([3, NONE, 0], dtype=torch.int32))
    for rows, sort in (
        ([0, NONE, 3], lambda: device.begin_samples(torch.tensor([5, 2, 0], dtype=torch.int32))),
        ([NONE, 0, 0], lambda: device.begin_range(3, 3)),
    ):
        sort()
        x, out = torch.randn(3, DOWN.columns), torch.zeros(3, 72)
        expected = changed(DOWN, adapters, rows, x, out)
        device.add(0, "down", x, out)
        np.testing.assert_allclose(out, expected, atol=2e-5)


def test_an_emptied_slot_changes_nothing() -> None:
    rng = np.random.default_rng(7)
    device = slots_of([adapter(rng, {"down": 8})], torch.float32, limits_of(2, 1, 8))
    device.load(0, None)
    device.begin(inputs_of([1, 1], 0), torch.tensor([0, 0], dtype=torch.int32))
    out = torch.zeros(2, 72)
    device.add(0, "down", torch.randn(2, DOWN.columns), out)
    assert not out.any()


def test_slots_are_spread_over_the_tokens_of_sequences() -> None:
    slots = torch.full((2500,), 9, dtype=torch.int32)
    spread_slots(
        torch.tensor([4, NONE, 2], dtype=torch.int32),
        torch.tensor([0, 1100, 1101, 1105], dtype=torch.int32),
        slots[:2400],
    )
    assert slots.tolist() == [4] * 1100 + [NONE] + [2] * 4 + [NONE] * 1295 + [9] * 100


def test_an_adapter_is_as_long_as_its_ranks() -> None:
    rng = np.random.default_rng(8)
    device = slots_of([None], torch.float32, limits_of(8, 1, 64))
    small = device.prepare(adapter(rng, {"q": 3}))
    assert len(small.numbers) == 8 * (QKV.columns + 200), "padded to 8 ranks"
    whole = {"q": 64, "k": 64, "v": 64, "down": 64, "o": 64, "embedding": 64}
    largest = device.prepare(adapter(rng, whole, bias=("q", "down", "o")))
    assert len(largest.numbers) + 72 == slot_elements(MATRICES, 64), "an embedding has no bias"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_hold_the_products_of_any_number_of_rows(dtype: torch.dtype) -> None:
    for most in (1, 100, 300, 5000, 20_000):
        room = adapter_configs.products_size(most, 1, dtype)
        for rows in {1, 15, 16, 17, 128, 129, 256, 257, 300, 512, 513, 3000, most}:
            if rows <= most:
                assert rows * adapter_configs.splits_of(rows, 1 << 20, dtype) <= room


def test_row_steps_have_every_configuration() -> None:
    def configuration(rows: int) -> tuple[int, int]:
        return adapter_configs.block_rows(rows, torch.bfloat16), adapter_configs.splits_of(rows, 4096, torch.bfloat16)

    for most in (5, 200, 9000):
        steps = adapter_configs.row_steps(most)
        assert {configuration(rows) for rows in range(1, most + 1)} == {configuration(rows) for rows in steps}
