"""Builds a decoder on the GPU: its memory budget, and the backend itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_common.failpoints import Failpoints
from octavo_inference.backends.cuda.adapter_layout import adapted_matrices, slots_bytes
from octavo_inference.backends.cuda.aot import kernel_cache
from octavo_inference.backends.cuda.backend import DEFAULT_BLOCK_SIZE, CudaBackend, kv_type, limits_of
from octavo_inference.backends.cuda.buffers import ActivationCopies, StepLimits, buffer_shapes, shapes_bytes
from octavo_inference.backends.cuda.collectives import RankGroup
from octavo_inference.backends.cuda.device import INTERPRETER, Device, fp8_products
from octavo_inference.backends.cuda.graphs import CudaCapture, graph_room
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.backends.cuda.pool import block_bytes, latent_block_bytes
from octavo_inference.backends.cuda.sampling import sampler_bytes
from octavo_inference.backends.cuda.scoring import scorer_bytes
from octavo_inference.backends.cuda.transfer import pieces
from octavo_inference.backends.cuda.weight_loading import activation_copies, device_bytes
from octavo_inference.common.errors import DeviceError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.core.request import MAX_LOGPROBS
from octavo_inference.model_loader import LoadedModel
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Weights

log = logging.getLogger(__name__)

# torch allocates in segments of 2 MB and of 20 MB: a simulation of its allocator lost 1 to 6 % of the weights' bytes.
_ROUNDING, _MOST_ROUNDING = 0.06, 512 * 2**20
_REPORTS = 10


def build_rank(
    settings: EngineSettings, model: LoadedModel, device: Device, group: RankGroup, sizes: CacheSizes
) -> CudaBackend:
    """Build a rank's shard of a model, for sizes that rank 0 decided. Ends its warm-up with the other ranks."""
    config, weights = shard(model.config, model.weights, rank=group.rank, size=group.size)
    return create(
        settings, memory_needs(settings, config, weights, device, group), weights, sizes, group, model.text.name
    )


def create(
    settings: EngineSettings, need: MemoryNeeds, weights: Weights, sizes: CacheSizes, group: RankGroup, name: str
) -> CudaBackend:
    """The backend with its weights loaded and its kernels warm. `name` is the model's, for the log.

    Raises `DeviceError` when the GPU's memory runs out.
    """
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
            state_slots=sizes.state_slots,
            adapter_slots=need.adapters.slots,
            max_adapter_rank=need.adapters.max_rank,
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
            f"out of GPU memory while loading the model: {device.free / 2**30:.1f} GiB were free when it "
            "began, and another process has taken some since; end it (nvidia-smi lists who), or set --kv-memory"
        ) from error
    return backend


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Slots of adapters, their largest rank, and the bytes of all."""

    slots: int = 0
    max_rank: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Device memory of a model in bytes: `weights`, `adapters`, a `block` of the KV pool, and buffers of a step.

    `margin` covers the rounding of torch's allocator and the device's other users (cuBLAS, the context). `graphs`:
    decode steps are captured, which needs memory of its own.
    """

    config: ModelConfig
    device: Device
    dtype: torch.dtype
    quantization: Quantization
    copies: ActivationCopies
    block_size: int
    longest: int
    weights: int
    adapters: AdapterRoom
    block: int
    margin: int
    ranks: int
    graphs: bool

    def working(self, rows: int, tokens: int) -> int:
        """Buffers, row table, sampler, transfers and rotary tables for steps of this many sequences and tokens."""
        config = self.config
        limits = self._limits(rows, tokens)
        ropes = {rope for rope in map(config.rope, range(config.layers)) if rope is not None}
        return (
            shapes_bytes(buffer_shapes(config, limits, self.dtype, self.copies))
            + sampler_bytes(vocab=config.vocab, max_rows=rows, max_logprobs=MAX_LOGPROBS)
            + scorer_bytes(limits, max_logprobs=MAX_LOGPROBS)
            + pieces(self.block) * self.block
            + sum(4 * self.longest * rope.dim for rope in ropes)
        )

    def beside_pool(self, rows: int, tokens: int) -> int:
        """All memory except the pool."""
        limits = self._limits(rows, tokens)
        graphs = graph_room(limits) if self.graphs else 0
        return self.weights + self.adapters.bytes + self.working(rows, tokens) + self.margin + graphs

    def _limits(self, rows: int, tokens: int) -> StepLimits:
        return limits_of(
            self.device,
            tokens,
            rows,
            self.longest,
            self.block_size,
            self.config.vocab,
            len(pool_layout(self.config).groups),
            self.ranks,
            self.adapters.slots,
            self.adapters.max_rank,
        )


def memory_needs(
    settings: EngineSettings, config: ModelConfig, weights: Weights, device: Device, group: RankGroup
) -> MemoryNeeds:
    """Device memory on `device` for a rank's shard of the model, `config` and `weights`."""
    dtype = _dtype(settings, interpreted=device.name == INTERPRETER)
    quantization = _quantization(settings)
    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    size = device_bytes(config, weights, dtype=dtype, quantization=quantization)
    kv_dtype, depth = kv_type(settings.kv_dtype, dtype), pool_layout(config).depth
    if config.latent is not None:
        block = latent_block_bytes(
            layers=depth, block_size=block_size, cached_dim=config.latent.cached_dim, dtype=kv_dtype
        )
    else:
        block = block_bytes(
            layers=depth,
            kv_heads=config.kv_heads,
            block_size=block_size,
            head_dim=config.head_dim,
            dtype=kv_dtype,
        )
    return MemoryNeeds(
        config,
        device,
        dtype,
        quantization,
        activation_copies(config, weights, dtype=dtype, quantization=quantization, fp8=fp8_products(device, dtype)),
        block_size,
        settings.max_model_len or config.max_positions,
        size,
        _adapter_room(settings, config, weights, dtype),
        block,
        device.reserve + min(int(size * _ROUNDING), _MOST_ROUNDING),
        group.size,
        settings.cuda_graphs is not False and device.torch.type == "cuda",
    )


def _adapter_room(settings: EngineSettings, config: ModelConfig, weights: Weights, dtype: torch.dtype) -> AdapterRoom:
    slots, rank = settings.max_loaded_adapters, settings.max_adapter_rank
    if slots == 0:
        return AdapterRoom()
    return AdapterRoom(slots, rank, slots_bytes(adapted_matrices(config, weights), slots, rank, dtype.itemsize))


def _dtype(settings: EngineSettings, *, interpreted: bool) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if interpreted else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def _quantization(settings: EngineSettings) -> Quantization:
    """A requested float type applies to the weights too, whatever type the file has."""
    if settings.quantization == "fp8":
        return "fp8"
    return "auto" if settings.dtype == "auto" else "dense"


def _report(name: str) -> Callable[[int, int], None]:
    """Log the progress of loading, in steps of a tenth."""
    told = 0

    def report(done: int, total: int) -> None:
        nonlocal told
        if total and done * _REPORTS // total > told:
            told = done * _REPORTS // total
            log.info("%s: %.1f of %.1f GB of weights are on the GPU", name, done / 1e9, total / 1e9)

    return report
