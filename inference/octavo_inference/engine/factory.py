"""Builds a loaded engine from settings: model, backend, and sizes that fit the available memory."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from octavo_common.failpoints import Failpoints
from octavo_inference.backends.cpu.native.cores import numa_nodes, usable_cores
from octavo_inference.backends.cuda.detect import absent_libraries, gpu_visible
from octavo_inference.checkpoints.peft import read_adapter, stored_biases
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.checkpoints.transformers_config import require_unquantized
from octavo_inference.common.errors import DeviceError, SettingsError, UnsupportedModelError
from octavo_inference.common.memory_plan import MemoryPlan, available_memory, require_memory, resident_memory
from octavo_inference.config.engine import KV_MEMORY_PERCENT, PROFILES, BackendName, Dtype, EngineSettings, Quantization
from octavo_inference.config.speculation import require_consistent
from octavo_inference.core.adapters import ReadAdapter
from octavo_inference.core.backend import Backend
from octavo_inference.core.built import Built
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.guidance import Compile
from octavo_inference.core.kv_cache_sizing import CacheSizes, fit
from octavo_inference.distributed.executor import End, RankExecutor, end_process
from octavo_inference.engine.draft import draft_model, load_draft
from octavo_inference.engine.quantization import require_floats
from octavo_inference.engine.speculation import speculators
from octavo_inference.model_loader import (
    ForeignModel,
    LoadedModel,
    TextModel,
    as_foreign,
    load_model,
    require_transformers,
)
from octavo_inference.models.adapter import MOST_TOKEN_ROWS
from octavo_inference.models.added_ids import copied_bytes
from octavo_inference.models.info import ModelInfo
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.shard import require_shards
from octavo_inference.models.weights import Weights, layer_matrices
from octavo_protocol.adapters import packed_rank
from octavo_protocol.engine_settings import guessed_rows
from octavo_protocol.kv_tables import KvTables

if TYPE_CHECKING:  # loads the kernels
    from octavo_inference.backends.cpu.backend import CpuBackend
    from octavo_inference.backends.cuda.device import Device
    from octavo_inference.backends.transformers.attention import KvShape

log = logging.getLogger(__name__)

# Most adapters are far smaller than they may be: memory for them is at most this part of what is free.
_MOST_ADAPTERS = 4
# Bytes of a token in the row table.
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A ready engine and its resolved settings: no field of `settings` is None.

    `again` makes another engine on the same backend, with other limits and an empty pool; one is used at a time.

    `dtype` stays "auto" if weights keep the format of the file. The capture of `captured` CUDA graphs took
    `capture_seconds`.
    """

    engine: Engine
    text: TextModel
    settings: EngineSettings
    memory: MemoryPlan | None
    again: Callable[[EngineLimits], Engine]
    rank_pids: tuple[int, ...] = ()
    captured: int = 0
    capture_seconds: float = 0.0


def load_engine(
    settings: EngineSettings, clock: Callable[[], float] = time.monotonic, *, end: End = end_process
) -> LoadedEngine:
    """Load a model and build an engine for it. Raises `ModelError` or `SettingsError` with the field at fault.

    `end` ends this process when another process that shares its model has ended.
    """
    model = load_model(settings.model, native=settings.backend != "transformers")
    return engine_for(settings, model, clock, end=end)


def engine_for(
    settings: EngineSettings,
    model: LoadedModel | ForeignModel,
    clock: Callable[[], float] = time.monotonic,
    *,
    end: End = end_process,
) -> LoadedEngine:
    """Like `load_engine`, for a model that is loaded already. Only other ranks read `settings.model`."""
    require_consistent(settings)
    computed = model.for_adapters(settings) if isinstance(model, LoadedModel) else model
    built = _build(settings, computed, end)
    sizes = built.sizes
    limits = EngineLimits(
        max_model_len=sizes.max_model_len,
        max_running=sizes.max_running,
        max_batched_tokens=sizes.max_batched_tokens,
        max_queued=settings.max_queued_requests,
        chunked_prefill=settings.chunked_prefill and not built.config.bidirectional,
        prefix_caching=settings.prefix_caching and not built.config.bidirectional,
        static_wait=settings.static_wait_ms / 1000 if settings.batching == "static" else None,
        prefill_slowdown=settings.prefill_slowdown,
        host_blocks=sizes.host_blocks,
        host_state_blocks=sizes.host_state_blocks,
        cache_policy=settings.cache_policy,
        overlap=settings.overlap is not False,
        max_samples=built.max_samples,
        max_cached_adapters=settings.max_cached_adapters,
        adapter_memory=built.adapter_memory,
    )
    speculator = speculators(settings, built, clock)
    # Made here, so that an engine made later does not keep the weights that were read.
    reader, head = _adapter_reader(model, computed, settings), model.head if isinstance(model, LoadedModel) else None
    load_vocabulary = partial(_load_vocabulary, model.text, built.config)

    def on_backend(limits: EngineLimits) -> Engine:
        return Engine(
            built.backend,
            built.config,
            limits,
            clock=clock,
            failpoints=Failpoints.from_environment(),
            load_vocabulary=load_vocabulary,
            head=head,
            speculator=speculator(),
            read_adapter=reader,
        )

    engine = on_backend(limits)
    resolved = dataclasses.replace(
        settings,
        backend=built.name,
        dtype=built.dtype,
        max_model_len=sizes.max_model_len,
        kv_memory=sizes.kv_memory,
        block_size=sizes.block_size,
        max_running_requests=sizes.max_running,
        max_batched_tokens=sizes.max_batched_tokens,
        overlap=engine.overlaps,
        cuda_graphs=built.captured > 0,
        threads=built.threads,
        swap_memory=sizes.swap_memory,
        state_snapshots=max(0, sizes.state_slots - sizes.max_running),
    )
    return LoadedEngine(
        engine,
        model.text,
        resolved,
        built.memory,
        on_backend,
        rank_pids=built.rank_pids,
        captured=built.captured,
        capture_seconds=built.capture_seconds,
    )


def _adapter_reader(
    model: LoadedModel | ForeignModel, computed: LoadedModel | ForeignModel, settings: EngineSettings
) -> ReadAdapter | None:
    """What reads adapters of a model, as its files have it and as it is computed; None if it takes none."""
    if isinstance(model, ForeignModel) or isinstance(computed, ForeignModel) or not settings.max_loaded_adapters:
        return None
    return partial(
        read_adapter,
        config=computed.config,
        biases=stored_biases(model.weights),
        outer=OuterMatrices.of(model.weights),
        model=model.text.path,
        max_rank=settings.max_adapter_rank,
    )


def _load_vocabulary(text: TextModel, config: ModelInfo) -> Compile:
    """Prepare the model's tokens for grammars."""
    from octavo_inference.grammar.matcher import Vocabulary  # noqa: PLC0415 -- imported in an idle moment

    return Vocabulary(text.tokenizer, config.vocab, config.eos_token_ids).compile


def _build(settings: EngineSettings, model: LoadedModel | ForeignModel, end: End) -> Built:
    """Build the backend; transformers takes the place of a native one that does not compute all of the model."""
    try:
        return _build_on(settings, model, end)
    except UnsupportedModelError as error:
        if isinstance(model, ForeignModel) or settings.backend == "reference" or settings.tensor_parallel_size > 1:
            raise
        return _build_on(settings, as_foreign(model, str(error)), end)


def _build_on(settings: EngineSettings, model: LoadedModel | ForeignModel, end: End) -> Built:
    """Build the backend on a GPU, or else on the CPU."""
    if settings.backend == "cuda" or (settings.backend in {"auto", "transformers"} and gpu_visible()):
        absent = absent_libraries()
        if absent:
            raise SettingsError(
                f"device cuda needs {' and '.join(absent)}, not installed here: use the image octavo-server instead of "
                "octavo-server-cpu, or pip install 'octavo[inference]'",
                "device",
            )
        if settings.tensor_parallel_size > 1:
            return _build_spread(settings, model, end)
        from octavo_inference.backends.cuda.device import find_device  # noqa: PLC0415 -- imports torch

        try:
            device = find_device()
        except DeviceError as error:
            if settings.backend == "cuda":
                raise
            log.warning("computing on the CPU although a GPU is present: %s", error)
        else:
            return _build_on_gpu(settings, model, device)
    return _build_on_cpu(settings, model)


def _require_no_draft(settings: EngineSettings) -> None:
    if settings.speculation == "draft":
        raise SettingsError(
            "speculation draft needs a CPU: set device to cpu, or use ngram, which works on a GPU too", "speculation"
        )


def _build_on_gpu(settings: EngineSettings, model: LoadedModel | ForeignModel, device: Device) -> Built:
    _require_no_draft(settings)
    if isinstance(model, ForeignModel):
        require_transformers(model)
        from octavo_inference.engine.transformers_on_gpu import build_transformers  # noqa: PLC0415 -- imports torch

        return build_transformers(settings, model, device)
    from octavo_inference.engine.cuda_factory import build_cuda  # noqa: PLC0415 -- imports torch

    return build_cuda(settings, model, device)


def _build_on_cpu(settings: EngineSettings, model: LoadedModel | ForeignModel) -> Built:
    if settings.kv_dtype != "auto":
        raise SettingsError(
            f"kv_dtype {settings.kv_dtype} needs a GPU (device cuda); without one leave it at auto", "kv_dtype"
        )
    if settings.quantization == "fp8":
        raise SettingsError(
            "quantization fp8 needs a GPU (device cuda); without one set int8, or leave it at auto", "quantization"
        )
    if settings.tensor_parallel_size > 1:
        raise SettingsError(
            f"tensor_parallel_size {settings.tensor_parallel_size} needs as many GPUs (device cuda): the cores of a "
            "CPU share its memory already; leave it at 1",
            "tensor_parallel_size",
        )
    if settings.overlap:
        raise SettingsError("overlap needs a GPU (device cuda): a CPU plans and computes on the same cores", "overlap")
    if settings.cuda_graphs:
        raise SettingsError("cuda_graphs needs a GPU (device cuda): without one leave it out", "cuda_graphs")
    return _build_foreign(settings, model) if isinstance(model, ForeignModel) else _build_native(settings, model)


def _build_spread(settings: EngineSettings, model: LoadedModel | ForeignModel, end: End) -> Built:
    """Build the backend of a model over several GPUs. The rank processes import in parallel with this one."""
    _require_no_draft(settings)
    size = settings.tensor_parallel_size
    if settings.preemption == "swap":
        raise SettingsError(
            f"preemption swap keeps blocks of one GPU in RAM, and tensor_parallel_size {size} spreads each over more: "
            "use recompute",
            "preemption",
        )
    if isinstance(model, ForeignModel):
        raise SettingsError(
            f"tensor_parallel_size {size}: transformers computes this model, and on one GPU only "
            f"({model.config.missing}); set it to 1",
            "tensor_parallel_size",
        )
    require_shards(model.config, model.weights, size)
    ranks = RankExecutor(size, end)
    try:
        from octavo_inference.backends.cuda.device import find_device  # noqa: PLC0415 -- imports torch
        from octavo_inference.engine.cuda_factory import build_cuda  # noqa: PLC0415 -- imports torch

        return build_cuda(settings, model, find_device(count=size), ranks)
    except BaseException:
        ranks.close()
        raise


def _build_native(settings: EngineSettings, model: LoadedModel) -> Built:
    name = _choose_backend(settings.backend)
    if settings.quantization != "auto":
        if name == "reference":
            raise SettingsError(
                f"quantization {settings.quantization} needs the CPU kernels, and the reference backend computes in "
                "float32 only: leave it at auto",
                "quantization",
            )
        require_floats(model.weights, settings.quantization)
    dtype = _choose_dtype(settings, name)
    element_bytes, default_block = _element_bytes(name, dtype)
    copied = copied_bytes(model.config, model.weights)
    free = available_memory() + copied  # what is copied already is planned with the weights
    draft = load_draft(settings, model)
    packed = model.weights if model.config.task == "generate" else model.weights.without_head()
    weights = _weight_bytes(packed, name, dtype, settings.quantization)
    layout = pool_layout(model.config)
    token = layout.token_bytes(model.config, element_bytes)
    if draft is not None:
        weights += _weight_bytes(draft.weights, name, dtype)
        # Each block of the pool has one of the draft model. A sequence has several blocks for the same tokens.
        token += pool_layout(draft.config).token_bytes(draft.config, element_bytes) * len(layout.groups)
    require_memory(model.text.path, weights, free)
    reserved = min(_adapter_bytes(settings, model, element_bytes), free // _MOST_ADAPTERS)
    sizes = _fit(settings, model.config, token, default_block, free - reserved, layout.kinds)
    # The reference's tiles are too small for several threads: fork and join cost more than they save.
    threads = settings.threads or (1 if name == "reference" else usable_cores())
    for tensor in (*model.weights.tensors(), *(draft.weights.tensors() if draft else ())):
        tensor.release()  # pages of the file that loading has read: the plan counts them as weights
    process = resident_memory(os.getpid()) - copied
    if name == "reference":  # allocates as it runs: nothing to plan
        create_reference = partial(_create_reference, threads, sizes=sizes)
        guesses = None if draft is None else draft_model(draft, model, sizes, create_reference)
        backend = _create_reference(threads, model, sizes, settings.max_loaded_adapters)
        samples = sizes.max_batched_tokens
        return Built(
            backend,
            model.config,
            sizes,
            name,
            dtype,
            threads,
            max_samples=samples,
            adapter_memory=reserved,
            draft=guesses,
        )
    if threads > 1 and (nodes := numa_nodes()) > 1:
        log.warning("its cores belong to %d NUMA nodes: one server per node reads less memory of the others", nodes)
    samples = sizes.max_running + guessed_rows(settings, sizes.max_running)
    adapters = settings.max_loaded_adapters, settings.max_adapter_rank
    native = _create_cpu(dtype, settings.quantization, threads, model, sizes, samples, adapters)
    backends = [native]

    def create(draft: LoadedModel) -> CpuBackend:
        backends.append(_create_cpu(dtype, "auto", threads, draft, sizes))
        return backends[-1]

    guesses = None if draft is None else draft_model(draft, model, sizes, create)
    plan = _plan(backends, sizes, process, free, reserved)
    return Built(
        native,
        model.config,
        sizes,
        name,
        dtype,
        threads,
        plan,
        max_samples=samples,
        adapter_memory=reserved,
        draft=guesses,
    )


def _plan(backends: Sequence[CpuBackend], sizes: CacheSizes, process: int, free: int, adapters: int) -> MemoryPlan:
    """The planned memory use of a model, of its draft model if it has one, and of `adapters` in bytes."""
    rows = sizes.max_running * sizes.max_model_len * _TOKEN_BYTES
    return MemoryPlan(
        weights=sum(backend.weight_bytes + backend.embedding_bytes for backend in backends) + adapters,
        kv_pool=sum(backend.kv_bytes for backend in backends),
        activations=sum(backend.working_bytes for backend in backends) + rows,
        swap=sizes.swap_memory,
        process=process,
        available=free,
    )


def _build_foreign(settings: EngineSettings, model: ForeignModel) -> Built:
    """Build the backend of a model that only transformers supports. A probe of its attention sizes the KV."""
    if settings.speculation == "draft":
        raise SettingsError(
            f"speculation draft: transformers computes this model ({model.config.missing}), which has no block tables "
            "to share with a draft model; use ngram",
            "speculation",
        )
    if settings.max_loaded_adapters:
        raise SettingsError(
            f"max_loaded_adapters {settings.max_loaded_adapters}: transformers computes this model "
            f"({model.config.missing}), and takes no adapters here; set it to 0",
            "max_loaded_adapters",
        )
    if settings.backend == "reference":
        raise SettingsError(f"the reference backend cannot compute this model: {model.config.missing}", "backend")
    if settings.quantization != "auto":
        raise SettingsError(
            f"quantization {settings.quantization} is not supported by transformers, which computes this model: leave "
            "it at auto",
            "quantization",
        )
    require_unquantized(model.folder, model.config)
    require_transformers(model)
    dtype = _choose_foreign_dtype() if settings.dtype == "auto" else settings.dtype
    element_bytes = 2 if dtype == "bfloat16" else 4
    require_memory(model.folder, model.elements * element_bytes, available_memory())
    import torch  # noqa: PLC0415 -- takes seconds, absent in some images

    from octavo_inference.backends.transformers import backend as hf  # noqa: PLC0415
    from octavo_inference.backends.transformers.load import load_module  # noqa: PLC0415
    from octavo_inference.backends.transformers.probe import prepare  # noqa: PLC0415
    from octavo_inference.backends.transformers.slot_pools import SlotPools, slot_elements  # noqa: PLC0415

    threads = settings.threads or usable_cores()
    torch.set_num_threads(threads)
    module = load_module(model.folder, model.config, getattr(torch, dtype))

    def make_pools(shapes: Sequence[KvShape], num_blocks: int, block_size: int) -> SlotPools:
        return SlotPools(shapes, module.dtype, num_blocks=num_blocks, block_size=block_size)

    shapes = prepare(module, model.config, model.folder, make_pools)
    config = dataclasses.replace(model.config, kv_elements=slot_elements(shapes))
    token = config.kv_bytes_per_token(element_bytes)
    sizes = _fit(settings, config, token, hf.DEFAULT_BLOCK_SIZE, available_memory())
    name = f"transformers ({config.architecture}, {dtype}, {threads} thread{'s' if threads > 1 else ''})"
    log.warning("%s is computed by transformers, slower than native kernels: %s", model.text.name, config.missing)
    pools = make_pools(shapes, sizes.num_blocks, sizes.block_size)
    backend = hf.TransformersBackend(name, module, pools, vocab=config.vocab)
    return Built(backend, config, sizes, "transformers", dtype, threads)


def _choose_foreign_dtype() -> Literal["bfloat16", "float32"]:
    """bfloat16 on processors with bfloat16 arithmetic; elsewhere torch emulates it at a fraction of float32's speed."""
    from octavo_inference.backends.cpu.native.library import machine_flags  # noqa: PLC0415 -- reads /proc/cpuinfo

    return "bfloat16" if machine_flags() & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"  # the last is ARM's


def _fit(
    settings: EngineSettings,
    config: ModelInfo,
    token_bytes: int,
    block_size: int,
    free: int,
    tables: Sequence[KvTables] = (),
) -> CacheSizes:
    """Resolve the sizes on a CPU; `free` is the bytes available before weights are packed."""
    percent = settings.kv_memory_percent
    if percent is not None and settings.kv_memory is not None:
        raise SettingsError(
            f"kv_memory_percent {percent} and kv_memory {settings.kv_memory} both size the KV pool: give one of them",
            "kv_memory_percent",
        )
    return fit(
        settings,
        PROFILES[settings.profile],
        max_positions=config.max_positions,
        token_bytes=token_bytes,
        state_bytes=config.state_bytes,
        block_size=block_size,
        room=lambda *_: free * (percent or KV_MEMORY_PERCENT) // 100,
        tables=tables,
        whole=config.bidirectional,
    )


def _choose_backend(wanted: BackendName) -> Literal["cpu", "reference"]:
    if wanted == "reference":
        return wanted
    from octavo_inference.backends.cpu.native.library import NativeUnavailableError, load  # noqa: PLC0415 -- opens the kernels

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
    """Bytes of one element of K or V, and the backend's default block size."""
    if backend == "reference":
        from octavo_inference.backends.reference import backend as reference  # noqa: PLC0415 -- imports torch

        return reference.KV_ELEMENT_BYTES, reference.DEFAULT_BLOCK_SIZE
    from octavo_inference.backends.cpu import backend as cpu  # noqa: PLC0415 -- loads the kernels

    return cpu.kv_element_bytes(dtype), cpu.DEFAULT_BLOCK_SIZE


def _weight_bytes(weights: Weights, backend: str, dtype: Dtype, quantization: Quantization = "auto") -> int:
    """Bytes of weights that a backend holds in addition to the mapped files."""
    if backend == "reference":
        return 4 * sum(math.prod(tensor.shape) for tensor in weights.tensors())
    from octavo_inference.backends.cpu.native.packed_formats import packed_bytes, weight_format  # noqa: PLC0415 -- loads no kernels

    return packed_bytes(weights, weight_format(dtype, quantization))


def _adapter_bytes(settings: EngineSettings, model: LoadedModel, element_bytes: int) -> int:
    """Bytes of loaded adapters that change all matrices with the largest rank, and as many rows of tokens as may be."""
    config = model.config
    layers = sum(sum(matrix.shape) for layer in model.weights.layers for matrix in layer_matrices(layer))
    outer = config.vocab + config.hidden
    # The change of lm_head is in the format of the layers', that of the embedding in float32.
    per_rank = (layers + outer) * element_bytes + outer * 4
    rows = 2 * MOST_TOKEN_ROWS * config.hidden * element_bytes
    return settings.max_loaded_adapters * (packed_rank(settings.max_adapter_rank) * per_rank + rows)


def _create_reference(threads: int, model: LoadedModel, sizes: CacheSizes, adapter_slots: int = 0) -> Backend:
    import torch  # noqa: PLC0415 -- only the reference needs it

    from octavo_inference.backends.reference.backend import ReferenceBackend  # noqa: PLC0415

    torch.set_num_threads(threads)
    return ReferenceBackend(
        model.config,
        model.weights,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_model_len=sizes.max_model_len,
        state_slots=sizes.state_slots,
        adapter_slots=adapter_slots,
    )


def _create_cpu(
    dtype: Dtype,
    quantization: Quantization,
    threads: int,
    model: LoadedModel,
    sizes: CacheSizes,
    max_samples: int = 0,
    adapters: tuple[int, int] = (0, 0),
) -> CpuBackend:
    """`adapters`: how many may be loaded, and their largest rank."""
    from octavo_inference.backends.cpu.backend import CpuBackend  # noqa: PLC0415

    return CpuBackend.create(
        model.config,
        model.weights,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_batched_tokens=sizes.max_batched_tokens,
        max_running=sizes.max_running,
        max_model_len=sizes.max_model_len,
        dtype=dtype,
        quantization=quantization,
        threads=threads,
        state_slots=sizes.state_slots,
        max_samples=max_samples,
        adapter_slots=adapters[0],
        max_adapter_rank=adapters[1],
    )
