"""From settings to a backend on the GPU: what fits is settled before the first weight is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_inference.backends.cuda.aot import kernel_cache
from octavo_inference.backends.cuda.backend import DEFAULT_BLOCK_SIZE, CudaBackend, check, kv_type, limits_of
from octavo_inference.backends.cuda.buffers import buffer_shapes, shapes_bytes
from octavo_inference.backends.cuda.collectives import ALONE, Group
from octavo_inference.backends.cuda.device import INTERPRETER, Device, multiplies_fp8, require_room
from octavo_inference.backends.cuda.graphs import CudaCapture, graph_room
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.backends.cuda.pool import block_bytes
from octavo_inference.backends.cuda.sampling import sampler_bytes
from octavo_inference.backends.cuda.transfer import pieces
from octavo_inference.backends.cuda.weight_loading import device_bytes
from octavo_inference.common.errors import DeviceError, SettingsError
from octavo_inference.common.failpoints import Failpoints
from octavo_inference.common.memory_plan import MemoryPlan, available_memory, resident_memory
from octavo_inference.config.engine import GPU_PROFILES, EngineSettings
from octavo_inference.core.backend import RowBackend
from octavo_inference.core.built import Built
from octavo_inference.core.kv_cache_sizing import Sizes, fit
from octavo_inference.core.request import MAX_LOGPROBS
from octavo_inference.distributed.executor import Ranks
from octavo_inference.distributed.rendezvous import meet
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.model_loader import ForeignModel, LoadedModel
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Weights

log = logging.getLogger(__name__)

_INTERPRETER_SHARE = 0.1
# Of the host's free memory, for the KV of preempted sequences.
_SWAP_ROOM = 0.5
# torch hands memory out in pieces of 2 MB and of 20 MB: a simulation of its allocator lost 1 to 6 % of the weights.
_ROUNDING, _MOST_ROUNDING = 0.06, 512 * 2**20
_REPORTS = 10


def build_cuda(
    settings: EngineSettings, model: LoadedModel | ForeignModel, device: Device, ranks: Ranks | None = None
) -> Built:
    """A model on the GPU, or on those of all `ranks`, of which this process is the first.

    Raises `DeviceError`, `ModelError` or `SettingsError` with what to do.
    """
    if isinstance(model, ForeignModel):
        raise SettingsError(
            f"device cuda cannot compute this model: {model.config.missing}; transformers computes it on CPUs: set "
            "device to cpu (resources.gpu.count to 0)",
            "device",
        )
    if settings.threads is not None:
        raise SettingsError(f"threads {settings.threads} is for CPUs; on a GPU leave it out", "threads")
    if settings.quantization == "fp8" and not _has_floats(model.weights):
        raise SettingsError(
            "quantization fp8 would change nothing: the checkpoint is quantised already; leave it at auto",
            "quantization",
        )
    interpreted = device.name == INTERPRETER
    if settings.cuda_graphs and interpreted:
        raise SettingsError("cuda_graphs needs a GPU: Triton's interpreter records none; leave it out", "cuda_graphs")
    if interpreted:
        log.warning("TRITON_INTERPRET is 1: kernels are interpreted on the CPU, right and thousands of times slower")
    check(model.config, device, settings.kv_dtype)
    group = ALONE
    if ranks is not None:
        group, device = meet(settings, model.config.digest, ranks)
    config, weights = shard(model.config, model.weights, rank=0, size=group.size)
    need = _needs(settings, config, weights, device, group)

    def room(rows: int, tokens: int) -> int:
        if interpreted:
            return int(available_memory() * _INTERPRETER_SHARE) // group.size
        least = need.beside_pool(rows, tokens)
        require_room(device, least + 2 * need.block)
        return device.free - least

    sizes = fit(
        settings,
        GPU_PROFILES[settings.profile],
        max_positions=config.max_positions,
        token_bytes=need.block // need.block_size,
        block_size=need.block_size,
        room=room,
        host_room=int(available_memory() * _SWAP_ROOM),
    )
    if not interpreted:
        beside = need.beside_pool(sizes.max_running, sizes.max_batched_tokens)
        require_room(device, beside + sizes.kv_memory, kv_memory=settings.kv_memory)
    process = resident_memory(os.getpid())
    if ranks is not None:
        ranks.make(sizes)
    own = _create(settings, need, weights, sizes, group, model.text.name)
    backend: RowBackend = own
    if ranks is not None:
        ranks.made()
        backend = TensorParallel(own, ranks)
    memory = MemoryPlan(
        weights=need.weights,
        kv_pool=sizes.kv_memory,
        activations=need.working(sizes.max_running, sizes.max_batched_tokens),
        swap=sizes.host_blocks * need.block,
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
    )


def build_rank(settings: EngineSettings, model: LoadedModel, device: Device, group: Group, sizes: Sizes) -> CudaBackend:
    """A rank's part of a model, for sizes that rank 0 settled. Ends its warm-up with the other ranks."""
    config, weights = shard(model.config, model.weights, rank=group.rank, size=group.size)
    return _create(settings, _needs(settings, config, weights, device, group), weights, sizes, group, model.text.name)


def _create(
    settings: EngineSettings, need: Needs, weights: Weights, sizes: Sizes, group: Group, name: str
) -> CudaBackend:
    device = need.device
    try:
        backend = CudaBackend.create(
            need.config,
            weights,
            device=device,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            max_batched_tokens=sizes.max_batched_tokens,
            max_running=sizes.max_running,
            max_model_len=sizes.max_model_len,
            dtype=need.dtype,
            kv_dtype=settings.kv_dtype,
            quantization=need.quantization,
            progress=_report(name) if group.rank == 0 else None,
            failpoints=Failpoints.from_environment(),
            group=group,
            capture=CudaCapture(device.torch) if need.graphs else None,
        )
        if device.name != INTERPRETER:
            with kernel_cache.watched() as kernels:
                backend.warm_up()
            log.info(
                "%d kernels were compiled before this start, and %d in it, which took %.1f s",
                kernels.ready,
                kernels.compiled,
                kernels.seconds,
            )
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"the GPU's memory ran out while the model was loaded: {device.free / 2**30:.1f} GiB were free when it "
            "began, and another process has taken some since; end it (nvidia-smi lists who), or set --kv-memory"
        ) from error
    return backend


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a model takes on a device: `weights`, a `block` of KV over all layers, and what depends on the step.

    `margin` is what torch's allocator may round up, and what the device's other users (cuBLAS, the context) need.
    `graphs`: decoding steps are recorded, which takes room of its own.
    """

    config: ModelConfig
    device: Device
    dtype: torch.dtype
    quantization: Quantization
    block_size: int
    longest: int
    weights: int
    block: int
    margin: int
    ranks: int
    graphs: bool

    def working(self, rows: int, tokens: int) -> int:
        """Buffers, row table, sampler, transfers and rotary tables for steps of so many sequences and tokens."""
        config = self.config
        eight = multiplies_fp8(self.device, self.quantization, self.dtype)
        limits = limits_of(self.device, tokens, rows, self.longest, self.block_size, self.ranks)
        ropes = {rope for rope in map(config.rope, range(config.layers)) if rope is not None}
        return (
            shapes_bytes(buffer_shapes(config, limits, self.dtype, eight=eight))
            + sampler_bytes(vocab=config.vocab, max_rows=rows, max_logprobs=MAX_LOGPROBS)
            + pieces(self.block) * self.block
            + sum(4 * self.longest * rope.dim for rope in ropes)
        )

    def beside_pool(self, rows: int, tokens: int) -> int:
        """All but the pool."""
        limits = limits_of(self.device, tokens, rows, self.longest, self.block_size, self.ranks)
        return self.weights + self.working(rows, tokens) + self.margin + (graph_room(limits) if self.graphs else 0)


def _needs(settings: EngineSettings, config: ModelConfig, weights: Weights, device: Device, group: Group) -> Needs:
    dtype = _dtype(settings, interpreted=device.name == INTERPRETER)
    quantization = _quantization(settings)
    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    size = device_bytes(config, weights, dtype=dtype, quantization=quantization)
    block = block_bytes(
        layers=config.layers,
        kv_heads=config.kv_heads,
        block_size=block_size,
        head_dim=config.head_dim,
        dtype=kv_type(settings.kv_dtype, dtype),
    )
    return Needs(
        config,
        device,
        dtype,
        quantization,
        block_size,
        settings.max_model_len or config.max_positions,
        size,
        block,
        device.reserve + min(int(size * _ROUNDING), _MOST_ROUNDING),
        group.size,
        settings.cuda_graphs is not False and device.torch.type == "cuda",
    )


def _dtype(settings: EngineSettings, *, interpreted: bool) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if interpreted else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def _quantization(settings: EngineSettings) -> Quantization:
    """A float type that is asked for holds for the weights too, whatever the file has."""
    return "dense" if settings.quantization == "auto" and settings.dtype != "auto" else settings.quantization


def _has_floats(weights: Weights) -> bool:
    return any(
        matrix.format in {"f32", "bf16", "f16"}
        for layer in weights.layers
        for matrix in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    )


def _report(name: str) -> Callable[[int, int], None]:
    """Tell every tenth of a load."""
    told = 0

    def report(done: int, total: int) -> None:
        nonlocal told
        if total and done * _REPORTS // total > told:
            told = done * _REPORTS // total
            log.info("%s: %.1f of %.1f GB of weights are on the GPU", name, done / 1e9, total / 1e9)

    return report
