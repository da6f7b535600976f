"""Builds a GPU backend from settings. Checks that everything fits before it reads the first weight."""

from __future__ import annotations

import logging
import os

from octavo_inference.backends.cuda.backend import check
from octavo_inference.backends.cuda.collectives import ALONE
from octavo_inference.backends.cuda.device import INTERPRETER, Device, require_room
from octavo_inference.backends.cuda.factory import create, memory_needs
from octavo_inference.common.errors import SettingsError
from octavo_inference.common.memory_plan import MemoryPlan, available_memory, resident_memory
from octavo_inference.config.engine import GPU_PROFILES, EngineSettings
from octavo_inference.core.backend import Backend
from octavo_inference.core.built import Built
from octavo_inference.core.kv_cache_sizing import fit
from octavo_inference.distributed.adapter_sender import AdapterSender
from octavo_inference.distributed.executor import RankExecutor
from octavo_inference.distributed.rendezvous import meet
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.engine.quantization import require_floats
from octavo_inference.model_loader import LoadedModel
from octavo_inference.models.added_ids import copied_bytes
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.shard import shard

log = logging.getLogger(__name__)

INTERPRETER_SHARE = 0.1
"""Share of the free memory for the KV pool, where kernels are interpreted."""
SWAP_ROOM = 0.5
"""Share of the host's free memory for the KV of preempted sequences."""
ADAPTER_ROOM = 0.25
"""Share of the host's free memory for adapters, those on the device included."""
_MOST_PAIRS = 8192  # of adapter and expert: each has a program in the sort of a layer, which reads all counts


def build_cuda(
    settings: EngineSettings, model: LoadedModel, device: Device, ranks: RankExecutor | None = None
) -> Built:
    """Build a model on the GPU, or on the GPUs of all `ranks`, of which this process is rank 0.

    Raises `DeviceError`, `ModelError` or `SettingsError` with the fix.
    """
    refuse_settings_of_cpus(settings)
    require_floats(model.weights, settings.quantization)
    interpreted = device.name == INTERPRETER
    if settings.cuda_graphs and interpreted:
        raise SettingsError(
            "cuda_graphs needs a GPU: Triton's interpreter cannot capture them; leave it out", "cuda_graphs"
        )
    if interpreted:
        log.warning("TRITON_INTERPRET is 1: kernels are interpreted on the CPU, which is thousands of times slower")
    check(model.config, device, settings.kv_dtype)
    _refuse_many_pairs(settings, model.config)
    group = ALONE
    if ranks is not None:
        group, device = meet(settings, model.config.digest, ranks)
    config, weights = shard(model.config, model.weights, rank=0, size=group.size)
    need = memory_needs(settings, config, weights, device, group)
    layout = pool_layout(config)

    def room(rows: int, tokens: int) -> int:
        if interpreted:
            return int(available_memory() * INTERPRETER_SHARE) // group.size
        least = need.beside_pool(rows, tokens)
        require_room(device, least + 2 * need.block + config.state_bytes)
        return device.free - least

    sizes = fit(
        settings,
        GPU_PROFILES[settings.profile],
        max_positions=config.max_positions,
        token_bytes=need.block // need.block_size * len(layout.groups),
        block_size=need.block_size,
        state_bytes=config.state_bytes,
        room=room,
        host_room=int(available_memory() * SWAP_ROOM),
        tables=layout.kinds,
        steps_ahead=1,
    )
    if not interpreted:
        beside = need.beside_pool(sizes.max_running, sizes.max_batched_tokens)
        require_room(device, beside + sizes.kv_memory, kv_memory=settings.kv_memory)
    process = resident_memory(os.getpid()) - copied_bytes(model.config, model.weights)
    if ranks is not None:
        ranks.make(sizes)
    own = create(settings, need, weights, sizes, group, model.text.name)
    backend: Backend = own
    if ranks is not None:
        ranks.made()
        backend = TensorParallel(own, ranks, AdapterSender(model.config, ranks.adapter_links))
    memory = MemoryPlan(
        weights=need.weights + need.adapters.bytes,
        kv_pool=sizes.kv_memory,
        activations=need.working(sizes.max_running, sizes.max_batched_tokens),
        swap=sizes.swap_memory,
        process=process,
        available=device.free or available_memory(),
        device=device.name if ranks is None else f"each {device.name} of {ranks.size}",
    )
    captured = [] if own.graphs is None else list(own.graphs.captured.values())
    return Built(
        backend,
        model.config,
        sizes,
        "cuda",
        settings.dtype,
        1,
        memory,
        () if ranks is None else ranks.pids,
        len(captured),
        sum(one.seconds for one in captured),
        adapter_memory=int(available_memory() * ADAPTER_ROOM),
    )


def _refuse_many_pairs(settings: EngineSettings, config: ModelConfig) -> None:
    """Raises `SettingsError` for more pairs of adapter and expert than one sort in each layer is fast for."""
    experts = 0 if config.experts is None else config.experts.count
    if settings.max_loaded_adapters * experts > _MOST_PAIRS:
        raise SettingsError(
            f"max_loaded_adapters {settings.max_loaded_adapters}: each layer sorts tokens by adapter and expert, of "
            f"which this model has {experts}; set it to {_MOST_PAIRS // experts} or less",
            "max_loaded_adapters",
        )


def refuse_settings_of_cpus(settings: EngineSettings) -> None:
    """Raises `SettingsError` for a setting that GPUs do not have."""
    for field in ("threads", "kv_memory_percent"):
        value = getattr(settings, field)
        if value is not None:
            raise SettingsError(f"{field} {value} is for CPUs; on a GPU leave it out", field)
    if settings.quantization == "int8":
        raise SettingsError(
            "quantization int8 is for CPUs; on a GPU set fp8, leave it at auto, or set device cpu", "quantization"
        )
