"""Layers with a mixture of experts in the whole engine, its kernels interpreted, against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda import weight_sender
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.buffers import sort_sizes
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.device_weights import DeviceExperts
from octavo_inference.backends.cuda.kernels.dequantize import dequantize_rows
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.backends.cuda.packing import E2M1
from octavo_inference.backends.cuda.weight_loading import device_bytes, upload
from octavo_inference.backends.cuda.weight_plan import plan_weights
from octavo_inference.core.gather import gather
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, RowTable, TableField, sampling_columns
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import Grouping
from octavo_inference.models.weights import Format, Matrix, Weights, dequantize

from ..unit.engine.echo import CONFIG, tiny_model  # noqa: TID252 -- tests are no package
from .grouped import grouped
from .mixtures import COUNT, EXPERTS, HIDDEN, INNER, Rows, mixture_model
from .stored import stored
from .test_engine import BLOCK, LONGEST, NO_CACHE, cuda, reference, run
from .test_upload import CPU, memory

Model = tuple[ModelConfig, Weights]


def step(lengths: list[int], computed: int = 0) -> RowStep:
    """Prompts of these lengths, or with `computed` their next token; a block for every sequence."""
    rows = np.arange(len(lengths), dtype=np.int32)
    end = np.array(lengths, np.int32) + (1 if computed else 0)
    counts = np.ones(len(lengths), np.int32) if computed else end
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    table, changes = RowTable.zeros(len(rows), LONGEST, BLOCK, CONFIG.vocab), []
    for row, length in enumerate(end.tolist()):
        table.tokens[row, :length] = np.random.default_rng(row).integers(0, 60, length)
        table.blocks[row, 0] = 4 * row + np.arange(4)
        table.sampling[row] = sampling_columns()
        fields: tuple[TableField, ...] = ("tokens", "blocks", "sampling")
        changes += [RowChange(name, row, 0, getattr(table, name)[row].reshape(-1)) for name in fields]
    nothing = np.full(len(rows), -1, np.int32)
    samples = RowSamples(query_start[1:] - 1, rows, end, nothing, [None] * len(rows))
    return RowStep(changes, rows, query_start, end, samples, table)


def logits(model: Model, steps: list[RowStep]) -> tuple[list[Any], list[Any], CudaBackend]:
    """Of each step, by the kernels and by the reference."""
    backend, other = cuda(model), reference(model)
    return [backend.logits(s) for s in steps], [other.logits(gather(s)) for s in steps], backend


@pytest.mark.parametrize("name", EXPERTS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    """Prompts in tiles, then one token of each; then a single one."""
    steps = [step([9, 3, 5]), step([9, 3, 5], computed=1), step([10], computed=1)]
    found, expected, backend = logits(mixture_model(name), steps)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 2e-5 * np.abs(other).max()
    counts = backend.expert_tokens()
    assert counts is not None
    layers = [part.feed_forward == "experts" for part in mixture_model(name)[0].parts]
    chosen = EXPERTS[name].chosen
    assert counts.sum(1).tolist() == [(17 + 3 + 1) * chosen * layer for layer in layers]


@pytest.mark.parametrize(
    ("blocks", "limits"),
    [pytest.param(32, {"budget": 7}, marks=pytest.mark.full), (4, {})],
    ids=["chunks", "preemption"],
)
def test_the_engine_gives_the_tokens_of_the_reference(blocks: int, limits: dict[str, Any]) -> None:
    model = mixture_model("groups and correction, a shared MLP")
    runner = run(cuda(model, blocks), **limits)
    assert runner.tokens == run(reference(model), **NO_CACHE).tokens
    assert (runner.engine.scheduler.preemptions > 0) == (blocks < 32)


def small(model: Model, **given: Any) -> CudaBackend:
    """With few sizes of steps."""
    return CudaBackend.create(
        *model, device=find_device(), num_blocks=16, block_size=BLOCK, max_batched_tokens=16, max_running=2,
        max_model_len=LONGEST, dtype=torch.float32, **given,
    )  # fmt: skip


def test_recorded_steps_count_tokens_and_choose_experts_anew() -> None:
    """A list of launches is replayed for other tokens; padding counts for no expert."""
    backend, eager = small(mixture_model(), capture=record), small(mixture_model())
    assert backend.graphs is not None
    backend.graphs.start()
    for one in (step([9, 3]), step([9, 3], computed=1), step([10, 4], computed=1)):
        found, expected = backend.launch(one).collect(), eager.launch(one).collect()
        assert found.tokens.tolist() == expected.tokens.tolist()
    counts = backend.expert_tokens()
    assert counts is not None
    assert counts.sum() == (12 + 2 + 2) * 2
    assert np.array_equal(counts, eager.expert_tokens())


def test_warm_up_counts_for_no_expert() -> None:
    backend = small(mixture_model("inputs scaled"))
    backend.warm_up()
    counts = backend.expert_tokens()
    assert counts is not None
    assert counts.shape == (2, COUNT)
    assert not counts.any()
    assert small(tiny_model()).expert_tokens() is None


GROUPED = {"int4": Grouping("int4", 32), "mxfp4": Grouping("code4", 32, levels=E2M1), "fp8": Grouping("fp8", 16)}


def made_of(kind: str) -> Rows:
    rng = np.random.default_rng(8)
    if kind in GROUPED:
        return lambda rows, columns: grouped(rng, GROUPED[kind], rows, columns, size=0.1)
    return lambda rows, columns: stored(rng, cast("Format", kind), rows, columns)


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "f16", *GROUPED])
def test_experts_of_each_format_are_uploaded_as_they_are(kind: str) -> None:
    config, weights = mixture_model("softmax", made_of(kind))
    loaded = upload(config, weights, device=CPU, dtype=torch.float32)
    assert device_bytes(config, weights, dtype=torch.float32) == loaded.nbytes == memory(loaded)
    experts, given = loaded.layers[1].feed_forward, weights.layers[1].experts
    assert isinstance(experts, DeviceExperts)
    assert given is not None
    assert experts.gate_up.form == {"q4_0": "int4", "q8_0": "int8", "f16": "dense", "mxfp4": "fp4"}.get(kind, kind)
    found = torch.empty(experts.gate_up.rows, HIDDEN)
    if experts.gate_up.form == "dense":
        found = experts.gate_up.values
    else:
        dequantize_rows(experts.gate_up, found)
    for expert in range(COUNT):
        rows = found[2 * INNER * expert :][: 2 * INNER].numpy()
        np.testing.assert_allclose(rows[:INNER], dequantize(given.gate[expert]), rtol=1e-6)
        np.testing.assert_allclose(rows[INNER:], dequantize(given.up[expert]), rtol=1e-6)
    backend = cuda((config, weights))
    steps = [step([9, 3]), step([9], computed=1)]
    for one in steps:
        expected = reference((config, weights))
        for before in steps[: steps.index(one)]:
            expected.logits(gather(before))
        wanted = expected.logits(gather(one))
        assert np.abs(backend.logits(one) - wanted).max() < 5e-5 * np.abs(wanted).max()


def test_fp8_is_for_experts_that_are_floats() -> None:
    """And no copy of activations in fp8 is for them: their products read weights alone in it."""
    config, weights = mixture_model()
    layers = tuple(layer for layer in weights.layers if layer.experts is not None)
    config, weights = replace(config, layers=1, parts=config.parts[1:]), replace(weights, layers=layers)
    loaded = upload(config, weights, device=CPU, dtype=torch.bfloat16, quantization="fp8")
    experts = loaded.layers[0].feed_forward
    assert isinstance(experts, DeviceExperts)
    assert (experts.gate_up.form, experts.down.form) == ("fp8", "fp8")
    assert experts.router.dtype is torch.float32
    assert loaded.nbytes == device_bytes(config, weights, dtype=torch.bfloat16, quantization="fp8")
    [parts] = plan_weights(config, weights, "bf16", "fp8").layers
    assert all(len(part) == 1 for name, part in parts.items() if name.startswith("experts."))


@pytest.mark.parametrize("unlike", ["formats", "an order of columns"])
def test_experts_of_unlike_layouts_become_floats(unlike: str) -> None:
    rng = np.random.default_rng(9)
    config, weights = mixture_model("softmax", made_of("q4_0"))
    given = weights.layers[1].experts
    assert given is not None
    other: Matrix = stored(rng, "q8_0", HIDDEN, INNER)
    if unlike == "an order of columns":
        other = grouped(rng, GROUPED["int4"], HIDDEN, INNER, size=0.1, ordered=True)
        given = replace(given, down=(other,) * COUNT)
    else:
        given = replace(given, down=(*given.down[1:], other))
    model = config, replace(weights, layers=(weights.layers[0], replace(weights.layers[1], experts=given)))
    loaded = upload(*model, device=CPU, dtype=torch.float32)
    experts = loaded.layers[1].feed_forward
    assert isinstance(experts, DeviceExperts)
    assert (experts.gate_up.form, experts.down.form) == ("int4", "dense")
    assert device_bytes(*model, dtype=torch.float32) == loaded.nbytes == memory(loaded)
    found, expected = cuda(model).logits(step([9, 3])), reference(model).logits(gather(step([9, 3])))
    assert np.abs(found - expected).max() < 5e-5 * np.abs(expected).max()


def test_pieces_of_experts_are_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is sent once, and arrives at its place; progress counts all bytes."""
    config, weights = mixture_model("clamped, with biases")
    whole = upload(config, weights, device=CPU, dtype=torch.bfloat16)
    monkeypatch.setattr(weight_sender, "_PIECE", 5 * HIDDEN)
    seen: list[tuple[int, int]] = []
    loaded = upload(
        config, weights, device=CPU, dtype=torch.bfloat16, progress=lambda done, total: seen.append((done, total))
    )
    one, other = whole.layers[1].feed_forward, loaded.layers[1].feed_forward
    assert isinstance(one, DeviceExperts)
    assert isinstance(other, DeviceExperts)
    for name in ("router", "router_bias", "gate_up_bias", "down_bias"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.gate_up.values, other.gate_up.values)
    assert torch.equal(one.down.values, other.down.values)
    assert seen[-1][0] == seen[-1][1] == loaded.nbytes - 4 * WORKSPACE


@pytest.mark.parametrize("tokens", [1, 5, 17, 63, 64, 65, 100, 511, 2048])
@pytest.mark.parametrize("name", EXPERTS)
def test_buffers_hold_the_choices_of_every_step(name: str, tokens: int) -> None:
    """In blocks of the size for each number of tokens up to the largest."""
    experts = EXPERTS[name]
    for dtype in (torch.float32, torch.bfloat16):
        most, places = sort_sizes(tokens, experts, dtype)
        for count in range(1, tokens + 1):
            rows = block_rows(count * experts.chosen, experts.count, dtype)
            blocks = most_blocks(count * experts.chosen, experts.count, rows)
            assert blocks <= most
            assert blocks * rows <= places
