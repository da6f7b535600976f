"""Builds a model of transformers on a GPU: slower than native kernels, with Octavo's paged attention."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from octavo_inference.backends.cuda.device import INTERPRETER, Device, require_room, watched
from octavo_inference.backends.cuda.kernels.tuned_configs import find_tiles
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.backends.transformers.attention import KvShape
from octavo_inference.backends.transformers.backend import DEFAULT_BLOCK_SIZE, TransformersBackend
from octavo_inference.backends.transformers.block_pools import BlockPools, block_elements
from octavo_inference.backends.transformers.load import load_module
from octavo_inference.backends.transformers.load_quantized import load_quantized
from octavo_inference.backends.transformers.probe import prepare
from octavo_inference.backends.transformers.products import multiply_linears, quantize_linears, workspace
from octavo_inference.backends.transformers.rehearsal import rehearse
from octavo_inference.common.errors import DeviceError, SettingsError
from octavo_inference.common.memory_plan import MemoryPlan, available_memory, require_memory, resident_memory
from octavo_inference.config.engine import GPU_PROFILES, Dtype, EngineSettings
from octavo_inference.core.built import Built
from octavo_inference.core.kv_cache_sizing import CacheSizes, fit
from octavo_inference.engine.cuda_factory import INTERPRETER_SHARE, SWAP_ROOM, refuse_settings_of_cpus
from octavo_inference.model_loader import ForeignModel
from octavo_protocol.model import no_effect

log = logging.getLogger(__name__)


def build_transformers(settings: EngineSettings, model: ForeignModel, device: Device) -> Built:
    """Build a model on the GPU. The weights pass through the host's memory.

    Raises `DeviceError`, `ModelError` or `SettingsError` with the fix.
    """
    refuse_settings_of_cpus(settings)
    _refuse_settings_of_native_kernels(settings)
    try:
        return _build(settings, model, device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"out of GPU memory while transformers loaded or tried the model: {device.free / 2**30:.1f} GiB were free "
            "when it began; choose a larger GPU (resources.gpu.minMemory), or a smaller --max-batched-tokens or "
            "--kv-memory"
        ) from error


def _build(settings: EngineSettings, model: ForeignModel, device: Device) -> Built:
    interpreted = device.name == INTERPRETER
    dtype = _dtype(settings, interpreted=interpreted)
    process, host = resident_memory(os.getpid()), available_memory()
    module = _load(settings, model, device, dtype, host)
    if device.torch.type == "cuda":
        # By default cuBLAS may add partial sums in bfloat16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def make_pools(shapes: Sequence[KvShape], num_blocks: int, block_size: int) -> BlockPools:
        return BlockPools(
            shapes,
            dtype,
            num_blocks=num_blocks,
            block_size=block_size,
            device=device.torch,
            multiprocessors=device.multiprocessors,
        )

    shapes = prepare(module, model.config, model.folder, make_pools)
    config = dataclasses.replace(model.config, kv_elements=block_elements(shapes))
    token = config.kv_bytes_per_token(dtype.itemsize)
    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    longest = settings.max_model_len or config.max_positions
    make = partial(_backend, model, module, device)

    @cache
    def beside_pool(rows: int, tokens: int) -> tuple[int, int]:
        """Bytes on the GPU besides the pool, and those of a step's activations among them."""
        backend = make(make_pools(shapes, 1, block_size))
        activations = _reserved(device, partial(rehearse, backend, rows=rows, tokens=tokens, longest=longest))
        used = device.free - torch.cuda.mem_get_info(device.torch)[0]
        return used + activations + device.reserve, activations

    def room(rows: int, tokens: int) -> int:
        if interpreted:
            return int(available_memory() * INTERPRETER_SHARE)
        least, _ = beside_pool(rows, tokens)
        require_room(device, least + 2 * token * block_size)
        return device.free - least

    sizes = fit(
        settings,
        GPU_PROFILES[settings.profile],
        max_positions=config.max_positions,
        token_bytes=token,
        block_size=block_size,
        room=room,
        host_room=int(available_memory() * SWAP_ROOM),
    )
    activations = 0
    if not interpreted:
        least, activations = beside_pool(sizes.max_running, sizes.max_batched_tokens)
        require_room(device, least + sizes.kv_memory, kv_memory=settings.kv_memory)
    backend = make(make_pools(shapes, sizes.num_blocks, sizes.block_size))
    log.warning("%s is computed by transformers, slower than native kernels: %s", model.text.name, config.missing)
    memory = _plan(module, sizes, activations, process, device.free or host, device)
    name: Dtype = "bfloat16" if dtype == torch.bfloat16 else "float32"
    return Built(backend, config, sizes, "transformers", name, 1, memory)


def _load(settings: EngineSettings, model: ForeignModel, device: Device, dtype: torch.dtype, host: int) -> Any:
    """The module on the device, with Octavo's products in place of its linear layers."""
    fp8, quantized = settings.quantization == "fp8", bool(model.config.quantization)
    if fp8 and quantized:
        raise SettingsError(no_effect(settings.quantization), "quantization")
    floats = model.elements * dtype.itemsize
    needed = model.nbytes if quantized else model.elements if fp8 else floats
    if device.name != INTERPRETER:
        require_room(device, needed + device.reserve)
    shared, tiles = workspace(device.torch), find_tiles(device.name)
    if quantized:
        kept: Quantization = "auto" if settings.dtype == "auto" else "dense"
        module = load_quantized(model.folder, model.config, dtype, kept, shared, tiles)
    else:
        require_memory(model.folder, floats, host)
        module = load_module(model.folder, model.config, dtype)
        if fp8:
            quantize_linears(module, shared, tiles)
        module = module.to(device.torch)
    multiply_linears(module, shared, tiles)
    return module


def _backend(model: ForeignModel, module: Any, device: Device, pools: BlockPools) -> TransformersBackend:
    dtype = str(module.dtype).replace("torch.", "")
    name = f"transformers ({model.config.architecture}, {dtype}, {device.name})"
    return TransformersBackend(name, module, pools, vocab=model.config.vocab, watched=_watched(device))


def _watched(device: Device) -> Callable[[], AbstractContextManager[None]]:
    """Tells a request's error from the loss of the device."""
    if device.torch.type != "cuda":
        return partial(watched, lambda: None)
    return partial(watched, partial(torch.cuda.synchronize, device.torch))


def _reserved(device: Device, compute: Callable[[], None]) -> int:
    """Bytes that torch's allocator takes from the GPU to compute, and gives back."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.torch)
    before = torch.cuda.memory_reserved(device.torch)
    compute()
    most = torch.cuda.max_memory_reserved(device.torch)
    torch.cuda.empty_cache()
    return most - before


def _plan(module: Any, sizes: CacheSizes, activations: int, process: int, available: int, device: Device) -> MemoryPlan:
    return MemoryPlan(
        weights=sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()]),
        kv_pool=sizes.kv_memory,
        activations=activations,
        swap=sizes.swap_memory,
        process=process,
        available=available,
        device=device.name,
    )


def _dtype(settings: EngineSettings, *, interpreted: bool) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if interpreted else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def _refuse_settings_of_native_kernels(settings: EngineSettings) -> None:
    given = {
        "kv_dtype": settings.kv_dtype if settings.kv_dtype != "auto" else None,
        "overlap": settings.overlap or None,
        "cuda_graphs": settings.cuda_graphs or None,
        "max_loaded_adapters": settings.max_loaded_adapters or None,
    }
    for field, value in given.items():
        if value is not None:
            raise SettingsError(
                f"{field} {value} needs native kernels, and transformers computes this model: leave it out", field
            )
