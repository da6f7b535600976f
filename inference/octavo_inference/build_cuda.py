"""From settings to a backend on the GPU: what fits is settled before the first weight is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import torch

from octavo_inference.built import Built
from octavo_inference.config import GPU_PROFILES, EngineSettings
from octavo_inference.core.request import MAX_LOGPROBS
from octavo_inference.errors import SettingsError
from octavo_inference.failpoints import Failpoints
from octavo_inference.model.config import ModelConfig
from octavo_inference.model.load import ForeignModel, LoadedModel
from octavo_inference.model.rope import Rope
from octavo_inference.ops.cuda.backend import DEFAULT_BLOCK_SIZE, CudaBackend, check, kv_type, limits_of
from octavo_inference.ops.cuda.buffers import buffer_shapes, shapes_bytes
from octavo_inference.ops.cuda.device import INTERPRETER, find_device, require_room
from octavo_inference.ops.cuda.packing import Quantization
from octavo_inference.ops.cuda.pool import block_bytes
from octavo_inference.ops.cuda.sampling import sampler_bytes
from octavo_inference.ops.cuda.transfer import pieces
from octavo_inference.ops.cuda.upload import device_bytes
from octavo_inference.run.memory import MemoryPlan, available_memory, resident_memory
from octavo_inference.sizes import fit

log = logging.getLogger(__name__)

_INTERPRETER_SHARE = 0.1
_REPORTS = 10


def build_cuda(settings: EngineSettings, model: LoadedModel | ForeignModel) -> Built:
    """A model on the GPU. Raises `DeviceError`, `ModelError` or `SettingsError` with what to do."""
    if isinstance(model, ForeignModel):
        raise SettingsError(
            f"device cuda cannot compute this model: {model.config.missing}; transformers computes it on CPUs: set "
            "device to cpu",
            "device",
        )
    device = find_device()
    if device.name == INTERPRETER:
        log.warning("TRITON_INTERPRET is 1: kernels are interpreted on the CPU, right and thousands of times slower")
    config = model.config
    check(config, device, settings.kv_dtype)
    dtype = _dtype(settings, interpreted=device.name == INTERPRETER)
    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    bytes_per_block = block_bytes(
        layers=config.layers,
        kv_heads=config.kv_heads,
        block_size=block_size,
        head_dim=config.head_dim,
        dtype=kv_type(settings.kv_dtype, dtype),
    )
    quantization = _quantization(settings)
    weights = device_bytes(config, model.weights, dtype=dtype, quantization=quantization)
    longest = settings.max_model_len or config.max_positions

    def working(rows: int, tokens: int) -> int:
        limits = limits_of(device, tokens, rows, longest, block_size)
        tables = longest * (config.rotary_dim or config.head_dim) * 4 * len(_ropes(config))
        return (
            shapes_bytes(buffer_shapes(config, limits, dtype))
            + sampler_bytes(vocab=config.vocab, max_rows=rows, max_model_len=longest, max_logprobs=MAX_LOGPROBS)
            + pieces(bytes_per_block) * bytes_per_block
            + tables
        )

    def room(rows: int, tokens: int) -> int:
        if device.name == INTERPRETER:
            return int(available_memory() * _INTERPRETER_SHARE)
        needed = weights + working(rows, tokens) + device.reserve
        require_room(device, needed + 2 * bytes_per_block)
        return device.free - needed

    sizes = fit(
        settings,
        GPU_PROFILES[settings.profile],
        max_positions=config.max_positions,
        token_bytes=bytes_per_block // block_size,
        block_size=block_size,
        room=room,
    )
    buffers = working(sizes.max_running, sizes.max_batched_tokens)
    if device.name != INTERPRETER:
        require_room(device, weights + buffers + device.reserve + sizes.kv_memory)
    process = resident_memory(os.getpid())
    backend = CudaBackend.create(
        config,
        model.weights,
        device=device,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_batched_tokens=sizes.max_batched_tokens,
        max_running=sizes.max_running,
        max_model_len=sizes.max_model_len,
        dtype=dtype,
        kv_dtype=settings.kv_dtype,
        quantization=quantization,
        progress=_report(model.text.name),
        failpoints=Failpoints.from_environment(),
    )
    if device.name != INTERPRETER:
        backend.warm_up()
    memory = MemoryPlan(
        weights=weights,
        kv_pool=sizes.kv_memory,
        activations=buffers,
        swap=sizes.host_blocks * bytes_per_block,
        process=process,
        available=device.free or available_memory(),
        device=device.name,
    )
    return Built(backend, config, sizes, "cuda", settings.dtype, 1, memory)


def _dtype(settings: EngineSettings, *, interpreted: bool) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if interpreted else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def _quantization(settings: EngineSettings) -> Quantization:
    """A float type that is asked for holds for the weights too, whatever the file has."""
    return "dense" if settings.quantization == "auto" and settings.dtype != "auto" else settings.quantization


def _ropes(config: ModelConfig) -> set[Rope]:
    return {rope for rope in map(config.rope, range(config.layers)) if rope is not None}


def _report(name: str) -> Callable[[int, int], None]:
    """Tell every tenth of a load."""
    told = 0

    def report(done: int, total: int) -> None:
        nonlocal told
        if total and done * _REPORTS // total > told:
            told = done * _REPORTS // total
            log.info("%s: %.1f of %.1f GB of weights are on the GPU", name, done / 1e9, total / 1e9)

    return report
