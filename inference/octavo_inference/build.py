"""From settings to a loaded engine: model, backend, and the sizes that fit the memory at hand."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from octavo_inference.config import PROFILES, BackendName, Dtype, EngineSettings
from octavo_inference.core.engine import Engine, EngineLimits
from octavo_inference.errors import SettingsError
from octavo_inference.failpoints import Failpoints
from octavo_inference.model.description import Description
from octavo_inference.model.load import ForeignModel, LoadedModel, TextModel, load_model, require_transformers
from octavo_inference.model.weights import Weights
from octavo_inference.ops.base import Backend
from octavo_inference.ops.native.cores import usable_cores
from octavo_inference.run.memory import MemoryPlan, available_memory, require_memory, resident_memory

log = logging.getLogger(__name__)

# Of the memory still free before weights are packed: a machine is shared, and packing takes its part too.
_KV_SHARE = 0.25
# Of the pool's size: a few preempted sequences are all there is to keep at a time.
_SWAP_SHARE = 0.25
# A token in the row table.
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A ready engine and what was settled on the way: no field of `settings` is None.

    `dtype` stays "auto" where weights are kept as the file stores them.
    """

    engine: Engine
    text: TextModel
    settings: EngineSettings
    memory: MemoryPlan | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How the KV pool and the batch were cut."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_running: int
    max_batched_tokens: int
    kv_memory: int
    host_blocks: int


@dataclass(frozen=True, slots=True)
class _Built:
    backend: Backend
    config: Description
    sizes: Sizes
    name: BackendName
    dtype: Dtype
    threads: int
    memory: MemoryPlan | None = None


def load_engine(settings: EngineSettings, clock: Callable[[], float] = time.monotonic) -> LoadedEngine:
    """Load a model and make an engine for it. Raises `ModelError` or `SettingsError` with the field at fault."""
    model = load_model(settings.model, native=settings.backend != "transformers")
    built = _build_foreign(settings, model) if isinstance(model, ForeignModel) else _build_native(settings, model)
    sizes = built.sizes
    limits = EngineLimits(
        max_model_len=sizes.max_model_len,
        max_running=sizes.max_running,
        max_batched_tokens=sizes.max_batched_tokens,
        max_queued=settings.max_queued_requests,
        chunked_prefill=settings.chunked_prefill,
        prefix_caching=settings.prefix_caching,
        static_wait=settings.static_wait_ms / 1000 if settings.batching == "static" else None,
        prefill_slowdown=settings.prefill_slowdown,
        host_blocks=sizes.host_blocks,
        cache_policy=settings.cache_policy,
    )
    engine = Engine(built.backend, built.config, limits, clock=clock, failpoints=Failpoints.from_environment())
    resolved = dataclasses.replace(
        settings,
        backend=built.name,
        dtype=built.dtype,
        max_model_len=sizes.max_model_len,
        kv_memory=sizes.kv_memory,
        block_size=sizes.block_size,
        max_running_requests=sizes.max_running,
        max_batched_tokens=sizes.max_batched_tokens,
        threads=built.threads,
        swap_memory=sizes.host_blocks * (sizes.kv_memory // sizes.num_blocks),
    )
    return LoadedEngine(engine, model.text, resolved, built.memory)


def _build_native(settings: EngineSettings, model: LoadedModel) -> _Built:
    name = _choose_backend(settings.backend)
    dtype = _choose_dtype(settings, name)
    element_bytes, default_block = _element_bytes(name, dtype)
    free = available_memory()
    require_memory(model.text.path, _weight_bytes(model.weights, name, dtype), free)
    sizes = fit(settings, model.config, element_bytes, default_block, free)
    # The reference's tiles are too small to share: forks and joins cost more than they save.
    threads = settings.threads or (1 if name == "reference" else usable_cores())
    process = resident_memory(os.getpid())
    backend = _create(name, dtype, threads, model, sizes)
    memory = _plan(backend, model, sizes, process, free)
    return _Built(backend, model.config, sizes, name, dtype, threads, memory)


def _plan(backend: Backend, model: LoadedModel, sizes: Sizes, process: int, free: int) -> MemoryPlan | None:
    """What will be in use; None for the reference, which takes what it needs as it goes."""
    from octavo_inference.ops.cpu import CpuBackend  # noqa: PLC0415

    if not isinstance(backend, CpuBackend):
        return None
    rows = sizes.max_running * sizes.max_model_len * _TOKEN_BYTES
    return MemoryPlan(
        weights=backend.weight_bytes + model.weights.embedding.data.nbytes,
        kv_pool=backend.kv_bytes,
        activations=backend.working_bytes + rows,
        swap=sizes.host_blocks * (sizes.kv_memory // sizes.num_blocks),
        process=process,
        available=free,
    )


def _build_foreign(settings: EngineSettings, model: ForeignModel) -> _Built:
    """A model that only transformers describes. Its KV is sized by what its attention stores in a probe."""
    if settings.backend == "reference":
        raise SettingsError(f"the reference backend cannot compute this model: {model.config.missing}", "backend")
    require_transformers(model)
    dtype = _choose_foreign_dtype() if settings.dtype == "auto" else settings.dtype
    element_bytes = 2 if dtype == "bfloat16" else 4
    require_memory(model.folder, model.elements * element_bytes, available_memory())
    import torch  # noqa: PLC0415 -- seconds, and not in every image

    from octavo_inference.ops.hf import backend as hf  # noqa: PLC0415
    from octavo_inference.ops.hf.load import load_module  # noqa: PLC0415
    from octavo_inference.ops.hf.probe import prepare  # noqa: PLC0415

    threads = settings.threads or usable_cores()
    torch.set_num_threads(threads)
    module = load_module(model.folder, model.config, getattr(torch, dtype))
    config, shapes = prepare(module, model.config, model.folder)
    sizes = fit(settings, config, element_bytes, hf.DEFAULT_BLOCK_SIZE, available_memory())
    name = f"transformers ({config.architecture}, {dtype}, {threads} thread{'s' if threads > 1 else ''})"
    log.warning("%s is computed by transformers, slower than native kernels: %s", model.text.name, config.missing)
    backend = hf.TransformersBackend(
        name, module, shapes, vocab=config.vocab, num_blocks=sizes.num_blocks, block_size=sizes.block_size
    )
    return _Built(backend, config, sizes, "transformers", dtype, threads)


def _choose_foreign_dtype() -> Literal["bfloat16", "float32"]:
    """bfloat16 where the processor multiplies it; elsewhere torch emulates that, at a fraction of float32's speed."""
    from octavo_inference.ops.native.library import machine_flags  # noqa: PLC0415 -- reads /proc/cpuinfo

    return "bfloat16" if machine_flags() & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"  # the last is ARM's


def fit(
    settings: EngineSettings, config: Description, element_bytes: int, default_block: int, free_memory: int
) -> Sizes:
    """Settle all sizes. Raises `SettingsError` with the numbers when the wishes contradict each other or the memory."""
    profile = PROFILES[settings.profile]
    block_size = settings.block_size or default_block
    wanted_len = settings.max_model_len or config.max_positions
    if wanted_len > config.max_positions:
        raise SettingsError(
            f"max_model_len {wanted_len} is more than the {config.max_positions} positions the model was trained for",
            "max_model_len",
        )
    max_running = settings.max_running_requests or profile.max_running_requests
    block_bytes = config.kv_bytes_per_token(element_bytes) * block_size
    kv_memory = settings.kv_memory
    if kv_memory is None:
        # More than all rows at full length could ever hold is of no use.
        useful = max_running * math.ceil(wanted_len / block_size) * block_bytes
        kv_memory = min(int(free_memory * _KV_SHARE), useful)
    num_blocks = kv_memory // block_bytes
    if num_blocks < 2:
        raise SettingsError(
            f"kv_memory {kv_memory} bytes holds {num_blocks} blocks of {block_bytes} bytes; at least 2 are needed",
            "kv_memory",
        )
    capacity = num_blocks * block_size
    if capacity < wanted_len and settings.max_model_len is not None:
        raise SettingsError(
            f"max_model_len {wanted_len} does not fit kv_memory: {kv_memory} bytes hold {capacity} tokens; "
            f"{math.ceil(wanted_len / block_size) * block_bytes} bytes are needed",
            "max_model_len",
        )
    if capacity < wanted_len:
        log.warning("max_model_len is %d of the model's %d: that is what kv_memory holds", capacity, wanted_len)
        wanted_len = capacity
    max_batched = settings.max_batched_tokens
    if max_batched is None:
        max_batched = max(profile.max_batched_tokens, max_running, 0 if settings.chunked_prefill else wanted_len)
    if max_batched < max_running:
        raise SettingsError(
            f"max_batched_tokens {max_batched} is less than max_running_requests {max_running}: one token each",
            "max_batched_tokens",
        )
    if max_batched < wanted_len and not settings.chunked_prefill:
        raise SettingsError(
            f"max_batched_tokens {max_batched} is less than max_model_len {wanted_len}, needed without chunked_prefill",
            "max_batched_tokens",
        )
    return Sizes(
        num_blocks,
        block_size,
        wanted_len,
        max_running,
        max_batched,
        num_blocks * block_bytes,
        _host_blocks(settings, num_blocks, block_bytes),
    )


def _host_blocks(settings: EngineSettings, num_blocks: int, block_bytes: int) -> int:
    if settings.preemption == "recompute":
        if settings.swap_memory is not None:
            raise SettingsError("swap_memory needs preemption swap: recompute keeps nothing", "swap_memory")
        return 0
    if settings.swap_memory is None:
        return max(1, int(num_blocks * _SWAP_SHARE))
    if settings.swap_memory < block_bytes:
        raise SettingsError(
            f"swap_memory {settings.swap_memory} bytes holds no block of {block_bytes} bytes", "swap_memory"
        )
    return settings.swap_memory // block_bytes


def _choose_backend(wanted: BackendName) -> Literal["cpu", "reference"]:
    if wanted == "reference":
        return wanted
    from octavo_inference.ops.native.library import NativeUnavailableError, load  # noqa: PLC0415 -- opens the kernels

    try:
        load()
    except NativeUnavailableError as error:
        if wanted == "cpu":
            raise
        log.warning("using the slow reference backend: %s", error)
        return "reference"
    return "cpu"


def _choose_dtype(settings: EngineSettings, backend: str) -> Dtype:
    if backend == "reference":
        if settings.dtype == "bfloat16":
            raise SettingsError("the reference backend computes in float32 only", "dtype")
        return "float32"
    return settings.dtype


def _element_bytes(backend: str, dtype: str) -> tuple[int, int]:
    """Bytes of one element of K or V, and the backend's own block size."""
    if backend == "reference":
        from octavo_inference.ops import reference  # noqa: PLC0415 -- imports torch

        return reference.KV_ELEMENT_BYTES, reference.DEFAULT_BLOCK_SIZE
    from octavo_inference.ops import cpu  # noqa: PLC0415 -- loads the kernels

    return cpu.kv_element_bytes(dtype), cpu.DEFAULT_BLOCK_SIZE


def _weight_bytes(weights: Weights, backend: str, dtype: Dtype) -> int:
    """Bytes that a backend will hold of the weights, beside the mapped files."""
    from octavo_inference.ops.native.packing import WEIGHT_FORMATS, packed_bytes  # noqa: PLC0415 -- loads no kernels

    return packed_bytes(weights, "f32" if backend == "reference" else WEIGHT_FORMATS[dtype])


def _create(backend: str, dtype: Dtype, threads: int, model: LoadedModel, sizes: Sizes) -> Backend:
    if backend == "reference":
        import torch  # noqa: PLC0415 -- only the reference needs it

        from octavo_inference.ops.reference import ReferenceBackend  # noqa: PLC0415

        torch.set_num_threads(threads)
        return ReferenceBackend(
            model.config,
            model.weights,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            max_model_len=sizes.max_model_len,
        )
    from octavo_inference.ops.cpu import CpuBackend  # noqa: PLC0415

    return CpuBackend.create(
        model.config,
        model.weights,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_batched_tokens=sizes.max_batched_tokens,
        max_running=sizes.max_running,
        max_model_len=sizes.max_model_len,
        dtype=dtype,
        threads=threads,
    )
