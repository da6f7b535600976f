"""What is allocated on the device is what was promised before anything was loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup
from octavo_inference.backends.cuda.device import Device, find_device
from octavo_inference.backends.cuda.factory import memory_needs
from octavo_inference.backends.cuda.graphs import graph_room
from octavo_inference.backends.cuda.kernels.launch_configs import linear_tile
from octavo_inference.backends.cuda.linear import LIBRARY_ROWS
from octavo_inference.backends.cuda.staging import Ring, Staging
from octavo_inference.backends.cuda.warmup import rehearsal
from octavo_inference.common.errors import DeviceError, SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.engine.cuda_factory import build_cuda
from octavo_inference.model_loader import LoadedModel, TextModel
from octavo_inference.models.shard import shard

from ..unit.engine.echo import tiny_model  # noqa: TID252 -- tests are no package
from .mixtures import mixture_model
from .test_engine import Model

GIB = 2**30
SETTINGS: dict[str, Any] = {
    "backend": "cuda",
    "dtype": "float32",
    "max_model_len": 40,
    "max_running_requests": 3,
    "max_batched_tokens": 20,
    "block_size": 16,
}


def card(free: float = 8.0) -> Device:
    """A card in the CPU's memory: budgeted and warmed up as one."""
    return Device(torch.device("cpu"), "a card", (9, 0), 132, 8 * GIB, int(free * GIB))


def model(given: Model | None = None) -> LoadedModel:
    config, weights = given or tiny_model()
    return LoadedModel(
        TextModel("tiny", Path("tiny"), config, lambda: pytest.fail("no words are needed")), config, weights
    )


def tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Staging | Ring):
        return  # the host's
    elif type(value).__module__.startswith("octavo_inference.backends.cuda"):
        yield from tensors(vars(value))


ADAPTERS = {"max_loaded_adapters": 3, "max_adapter_rank": 20}


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ({}, tiny_model()),
        ({"kv_dtype": "int8"}, tiny_model()),
        (ADAPTERS, tiny_model()),
        (ADAPTERS, mixture_model("not normalized, a gated shared MLP")),
    ],
    ids=["plain", "int8", "adapters", "adapters of experts"],
)
def test_the_plan_is_what_is_allocated(given: dict[str, Any], of: Model) -> None:
    built = build_cuda(EngineSettings(**SETTINGS, **given), model(of), card())
    backend, memory = built.backend, built.memory
    assert isinstance(backend, CudaBackend)
    parts = [backend._decoder, backend._sampler, backend._scorer, backend._transfer]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(parts)}
    assert memory is not None
    assert sum(storages.values()) == memory.grows
    assert (memory.device, memory.available) == ("a card", 8 * GIB)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_counts_its_part_of_the_slots_of_adapters(size: int) -> None:
    config, weights = tiny_model()
    settings = EngineSettings(**SETTINGS, tensor_parallel_size=size, max_loaded_adapters=3, max_adapter_rank=20)
    counted = []
    for rank in range(size):
        part, own = shard(config, weights, rank=rank, size=size)
        group = RankGroup(rank, size)
        room = memory_needs(settings, part, own, card(), group).adapters
        backend = CudaBackend.create(
            part, own, device=card(), num_blocks=4, max_batched_tokens=20, max_running=3, max_model_len=40,
            adapter_slots=room.slots, max_adapter_rank=room.max_rank, dtype=torch.float32, group=group,
        )  # fmt: skip
        slots = backend._decoder.context.adapters
        assert slots is not None
        held = [slots._numbers, slots._entries, slots._tiles, slots._rows]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(held)}
        assert sum(storages.values()) == room.bytes
        counted.append(room.bytes)
    whole = memory_needs(settings, config, weights, card(), ALONE).adapters.bytes
    # Rank 0, whose sizes count for all, has the longest part of the vocabulary.
    assert max(counted) == counted[0]
    assert (counted[0] < whole) == (size > 1)


def test_a_pool_gets_what_the_rest_leaves() -> None:
    settings = EngineSettings(**SETTINGS | {"max_running_requests": 20, "max_model_len": 256})
    least = 0.6  # the reserve is half a GiB
    built = build_cuda(settings, model(), card(least))
    assert built.memory is not None
    assert built.memory.grows + card(least).reserve <= least * GIB


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(DeviceError, match=r"the model needs .* GiB and 0.1 of 8.0 GiB are free on a card: other proc"):
        build_cuda(EngineSettings(**SETTINGS), model(), card(0.1))


def test_swap_is_bounded_by_the_host() -> None:
    settings = EngineSettings(**SETTINGS, preemption="swap", swap_memory=2**50)
    with pytest.raises(SettingsError, match="is more than the host can give"):
        build_cuda(settings, model(), card())


def test_graphs_have_room_of_their_own_on_a_card() -> None:
    config, weights = tiny_model()
    device = Device(torch.device("cuda"), "a card", (9, 0), 132, 8 * GIB, 8 * GIB)

    def beside(**given: Any) -> int:
        settings = EngineSettings(**SETTINGS | {"dtype": "bfloat16"} | given)
        return memory_needs(settings, config, weights, device, ALONE).beside_pool(32, 512)

    room = graph_room(StepLimits(512, 32, 40, 16, 132, 1000))
    assert room > 64 * 2**20
    assert beside() == beside(cuda_graphs=True) == beside(cuda_graphs=False) + room
    adapted = graph_room(StepLimits(512, 32, 40, 16, 132, 1000, adapters=2, adapter_rank=8))
    some = {"max_loaded_adapters": 2, "max_adapter_rank": 8}
    assert beside(**some) == beside(**some, cuda_graphs=False) + adapted
    assert room < adapted < 2 * room


def test_an_interpreter_records_no_graphs() -> None:
    with pytest.raises(SettingsError, match="cuda_graphs needs a GPU: Triton's interpreter cannot capture them"):
        build_cuda(EngineSettings(**SETTINGS, cuda_graphs=True), model(), find_device())


def test_more_adapters_than_a_sort_of_experts_is_fast_for_are_refused() -> None:
    given = mixture_model()
    most = 8192 // given[0].experts.count
    with pytest.raises(SettingsError, match=f"max_loaded_adapters {most + 1}: .* set it to {most} or less"):
        build_cuda(EngineSettings(**SETTINGS, max_loaded_adapters=most + 1), model(given), card())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"threads": 3}, "threads 3 is for CPUs"),
        ({"kv_memory_percent": 40}, "kv_memory_percent 40 is for CPUs"),
        ({"quantization": "int8"}, "quantization int8 is for CPUs.*or set device cpu"),
        ({"kv_memory": 20 * GIB}, "20.0 of it by --kv-memory"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((SettingsError, DeviceError), match=sentence):
        build_cuda(EngineSettings(**SETTINGS | given), model(), card())


@pytest.mark.parametrize(
    ("tokens", "rows", "positions", "block_size"),
    [
        (512, 32, 4096, 16),
        (2048, 256, 131072, 16),
        (2048, 48, 500, 16),
        (64, 8, 16, 32),
        (16, 16, 16, 128),
        (1, 1, 8, 16),
    ],
)
def test_the_rehearsal_needs_every_tile_that_serving_does(
    tokens: int, rows: int, positions: int, block_size: int
) -> None:
    limits = StepLimits(tokens, rows, positions, block_size, 132, 1000)
    steps = list(rehearsal(limits))
    sizes = [(int(step.query_start[-1]), len(step.row)) for step in steps]
    for step, (read, sequences) in zip(steps, sizes, strict=True):
        assert 0 < read <= tokens
        assert sequences <= rows
        assert step.seq_len.max() <= positions
        assert max(len(change.values) for change in step.changes if change.field == "blocks") <= limits.columns
    for dtype in (torch.bfloat16, torch.float32):
        for size in (576, 4096):
            for counts, most in (((n for n, _ in sizes), rows * positions), ((n for _, n in sizes), rows)):
                # For more rows weights are dequantized, in one way for all counts.
                rehearsed = {linear_tile("int4", min(n, LIBRARY_ROWS), size, size, dtype) for n in counts}
                needed = range(1, min(tokens, most, LIBRARY_ROWS) + 1)
                assert {linear_tile("int4", m, size, size, dtype) for m in needed} <= rehearsed
    assert any((step.sample.logprobs >= 0).any() for step in steps)
