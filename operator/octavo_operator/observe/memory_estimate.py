"""Estimates the memory of a replica without GPUs from the model inspection, before a server runs.

Same arithmetic as `octavo_inference.core.kv_cache_sizing.fit` and its memory plan for the CPU backend; a test compares
the two. Working memory depends on the node's instruction set: the estimate takes the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.pool_estimate import PoolEstimate
from octavo_operator.resources.config import mib, quantity, threads
from octavo_protocol.adapters import packed_rank
from octavo_protocol.engine_settings import KV_MEMORY_PERCENT, PROFILES, EngineSettings, added_tokens, guessed_rows
from octavo_protocol.kv_tables import blocks_held, longest_held, table_count
from octavo_protocol.model import ModelReport
from octavo_protocol.state_slots import most_useful, state_slots

# Interpreter, libraries and vocabulary of the server's two processes; measured and rounded up.
PROCESSES = 160 << 20
_BLOCK_SIZE = 16
_SWAP_SHARE = 0.25
_TOKEN_BYTES = 4
_FLOAT_BYTES = 4
# Most adapters are far smaller than they may be: memory for them is at most this part of what is free.
_MOST_ADAPTERS = 4
# Flags of octavo-server that change its memory use: with one of them there is no estimate.
_SIZING = (
    *("kv-memory", "kv-memory-percent", "max-model-len", "max-running-requests", "max-batched-tokens", "dtype"),
    *("block-size", "profile", "swap-memory", "preemption", "device", "backend", "quantization", "state-snapshots"),
    *("speculation", "speculation-model", "max-loaded-adapters", "max-adapter-rank", "max-added-tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(PoolEstimate):
    """Bytes of one replica in RAM at full use. `draft` of `weights` are those of the draft model.

    `adapters` are reserved for the largest adapters that may be loaded.
    """

    limit: int
    weights: int
    draft: int = 0
    adapters: int = 0
    activations: int
    swap: int

    @property
    def total(self) -> int:
        """Total bytes, with the processes."""
        return PROCESSES + self.weights + self.adapters + self.kv + self.activations + self.swap


def kv_bytes(settings: EngineSettings, found: ModelReport) -> int | None:
    """Bytes of one token in the KV cache pool, None if they are unknown."""
    return found.kv_elements_per_token * (4 if settings.dtype == "float32" else 2) or None


def weight_bytes(settings: EngineSettings, found: ModelReport) -> int | None:
    """Bytes of the weights on a CPU, None if they are unknown."""
    return found.weights.get(settings.dtype if settings.quantization == "auto" else settings.quantization)


def added_bytes(settings: EngineSettings, found: ModelReport) -> int:
    """Bytes of the rows of embedding and head for added tokens, and of the bias that excludes them."""
    added = added_tokens(settings)
    return _FLOAT_BYTES * (2 * added * found.hidden + found.vocab + added) if added else 0


def adapter_bytes(settings: EngineSettings, found: ModelReport) -> int:
    """Bytes of loaded adapters that change all matrices with the largest rank."""
    size = 4 if settings.dtype == "float32" else 2
    # The embedding's change is in float32, as the engine has it.
    outer = found.vocab + added_tokens(settings) + found.hidden
    per_rank = (found.adapter_elements + outer) * size + outer * _FLOAT_BYTES
    each = packed_rank(settings.max_adapter_rank) * per_rank + found.adapter_fixed * size
    return settings.max_loaded_adapters * each


def estimate(spec: Spec, memory: str, found: ModelReport) -> Estimate | None:
    """The estimate for a replica with this memory limit; None where only the server can tell."""
    settings = spec.engine.settings
    if spec.resources.gpu.count:
        return None  # weights and KV are on the GPU (`gpu_memory`)
    drafts = _draft(spec, found)
    if drafts is None:
        return None
    weights, token = weight_bytes(settings, found), kv_bytes(settings, found)
    given = {flag.lstrip("-").partition("=")[0] for flag in spec.engine.extra_args}
    if not (weights and token and found.max_length) or given & set(_SIZING):
        return None
    weights += added_bytes(settings, found)
    limit = int(quantity(memory))
    profile = PROFILES[settings.profile]
    running = settings.max_running_requests or profile.max_running_requests
    block_size = settings.block_size or _BLOCK_SIZE
    kinds = found.kv_tables
    # Each block has one of the draft model. A sequence has a block of each table for the same tokens.
    block = (token // table_count(kinds) + drafts.token) * block_size
    length = min(settings.max_model_len or found.max_length, found.max_length)
    chunked = settings.chunked_prefill and not found.whole_prompts
    chunk = _batched(settings, running, length, chunked=chunked)
    useful = running * blocks_held(kinds, length, chunk, block_size) * block
    if found.whole_prompts:
        useful = (-(-chunk // block_size) + 2 * running) * block
    reserved = min(adapter_bytes(settings, found), max(0, limit - PROCESSES) // _MOST_ADAPTERS)
    pool = _pool(settings, limit - reserved, useful + most_useful(running, found.state_bytes, settings.state_snapshots))
    states = state_slots(
        pool,
        running,
        found.state_bytes,
        rows_given=settings.max_running_requests is not None,
        snapshots=settings.state_snapshots,
        caching=settings.prefix_caching,
    )
    running = states.rows
    blocks = max(0, pool - states.nbytes) // block
    kv = blocks * block + states.nbytes
    if settings.max_model_len is None:
        length = max(longest_held(kinds, blocks, chunk, block_size, length), min(length, block_size))
    tokens = _batched(settings, running, length, chunked=chunked)
    return Estimate(
        limit=limit,
        weights=weights + drafts.weights,
        draft=drafts.weights,
        adapters=reserved,
        kv=kv,
        activations=_working(spec, found, tokens, running + guessed_rows(settings, running))
        + _FLOAT_BYTES * added_tokens(settings) * (running + guessed_rows(settings, running) + threads(spec))
        + _working(spec, drafts.found, tokens, running)
        + _TOKEN_BYTES * running * length,
        swap=0 if found.whole_prompts else _swap(settings, kv),
        sequence=blocks_held(kinds, length, chunk, block_size) * block + states.nbytes,
        block=block,
        block_size=block_size,
        length=length,
        states=states.nbytes,
        tables=kinds,
        chunk=chunk,
    )


@dataclass(frozen=True, slots=True)
class _Draft:
    """The report on the draft model; bytes of its weights, and of its part of a token in a block."""

    found: ModelReport
    weights: int
    token: int


def _draft(spec: Spec, found: ModelReport) -> _Draft | None:
    """The draft model, which takes nothing if there is none; None if its sizes are unknown."""
    settings, draft = spec.engine.settings, found.draft
    if spec.engine.speculation.model is None:
        return _Draft(ModelReport(), weights=0, token=0)
    if draft is None:
        return None
    weights, token = draft.weights.get(settings.dtype), kv_bytes(settings, draft)  # `quantization` is for the model
    return _Draft(draft, weights, token) if weights and token else None


def _working(spec: Spec, found: ModelReport, tokens: int, rows: int) -> int:
    """Buffers of a model's steps of so many tokens, of which so many are sampled."""
    return found.token_bytes * tokens + found.row_bytes * (rows + threads(spec)) + found.thread_bytes * threads(spec)


def _batched(settings: EngineSettings, running: int, length: int, *, chunked: bool) -> int:
    """Most tokens of a step."""
    whole = 0 if chunked else length
    return settings.max_batched_tokens or max(PROFILES[settings.profile].max_batched_tokens, running, whole)


def _pool(settings: EngineSettings, limit: int, useful: int) -> int:
    if settings.kv_memory is not None:
        return settings.kv_memory
    # The engine process itself is already resident when the server measures free memory.
    return min(max(0, limit - PROCESSES) * (settings.kv_memory_percent or KV_MEMORY_PERCENT) // 100, useful)


def _swap(settings: EngineSettings, kv: int) -> int:
    if settings.preemption != "swap":
        return 0
    return settings.swap_memory or int(kv * _SWAP_SHARE)


def refusal(spec: Spec, found: Estimate) -> str:
    """Why a replica does not fit, with the figures and the fixes; empty when it fits."""
    if found.total > found.limit:
        return _too_little(spec, found)
    settings = spec.engine.settings
    if found.sequence <= found.kv or settings.max_model_len is None:
        return ""
    share = "a quarter" if settings.kv_memory_percent is None else f"{settings.kv_memory_percent} %"
    ways = [f"set spec.engine.kv.memory to {mib(found.sequence)} or more{_in_place(settings)}"]
    if found.kv_tokens >= 16:
        ways.append(f"lower spec.engine.maxModelLen to {found.kv_tokens}")
    pool = "spec.engine.kv.memory" if settings.kv_memory else f"{share} of what spec.resources.memory leaves"
    return (
        f"spec.engine.maxModelLen: the KV of one sequence of {found.length} tokens takes {mib(found.sequence)}"
        f"{found.of_states}, and the pool has {mib(found.kv)} ({pool}); {', or '.join(ways)}"
    )


def _too_little(spec: Spec, found: Estimate) -> str:
    settings = spec.engine.settings
    rest, length_given = found.total - found.kv, settings.max_model_len is not None
    ways = [f"set at least {mib(found.total)}"]
    room = (found.limit - rest) // found.block * found.block
    if room >= max(found.least, found.sequence if length_given else 0):
        ways.append(f"lower spec.engine.kv.memory to {mib(room, up=False)}{_in_place(settings)}")
    elif room >= found.least and length_given:
        tokens = found.tokens_in(room)
        pool = f"spec.engine.kv.memory to {mib(room, up=False)}{_in_place(settings)}"
        ways.append(f"lower spec.engine.maxModelLen to {tokens} and {pool}")
    if found.adapters:
        ways.append("lower spec.engine.adapters.maxLoaded or maxRank")
    longest = f"one sequence of {found.length} tokens takes {mib(found.sequence)}{found.of_states}"
    parts = [
        f"the weights take {mib(found.weights)}{f' ({mib(found.draft)} of the draft model)' if found.draft else ''}",
        f"the KV pool {mib(found.kv)} ({longest})",
        f"working memory {mib(found.activations)}",
        *([f"{settings.max_loaded_adapters} adapters {mib(found.adapters)}"] if found.adapters else []),
        *([f"swapped KV {mib(found.swap)}"] if found.swap else []),
        f"the processes {mib(PROCESSES)}",
    ]
    return (
        f"spec.resources.memory: {mib(found.limit)} is too little: {', '.join(parts)}, {mib(found.total)} in all; "
        f"{', or '.join(ways)}"
    )


def _in_place(settings: EngineSettings) -> str:
    """The API takes one of memory and memoryPercent."""
    return " in place of memoryPercent" if settings.kv_memory_percent else ""
