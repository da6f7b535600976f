"""Sizes the KV pool and the batch from the settings and the available memory. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import BatchProfile, EngineSettings
from octavo_protocol.kv_tables import KvTables, blocks_held, longest_held, table_count

log = logging.getLogger(__name__)

# Share of the pool size. Only a few preempted sequences have to be kept at a time.
_SWAP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Resolved sizes of the KV pool and the batch."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_running: int
    max_batched_tokens: int
    kv_memory: int
    host_blocks: int


def fit(
    settings: EngineSettings,
    profile: BatchProfile,
    *,
    max_positions: int,
    token_bytes: int,
    block_size: int,
    room: Callable[[int, int], int],
    host_room: int | None = None,
    tables: Sequence[KvTables] = (),
    steps_ahead: int = 0,
) -> CacheSizes:
    """Resolve all sizes.

    `token_bytes` is the size of one token's K and V over all layers, `block_size` the backend's default. `tables` are
    the block tables of a sequence (none: one with full attention), each with an equal part of these bytes.
    `steps_ahead` is how many steps are launched before the oldest is collected.
    `room(rows, tokens)` returns how many bytes the KV pool may take in addition to the buffers of steps with that many
    sequences and tokens. `host_room` bounds the host memory for preempted sequences if the pool is not in host memory.
    Raises `SettingsError` with the numbers if the settings contradict each other or exceed the memory.
    """
    block_size = settings.block_size or block_size
    wanted_len = settings.max_model_len or max_positions
    if wanted_len > max_positions:
        raise SettingsError(
            f"max_model_len {wanted_len} is more than the {max_positions} positions the model was trained for",
            "max_model_len",
        )
    max_running = settings.max_running_requests or profile.max_running_requests
    count = table_count(tables)
    block_bytes = token_bytes * block_size // count
    chunk = _batched_tokens(settings, profile, max_running, wanted_len) * (1 + steps_ahead)

    def bytes_of(tokens: int) -> int:
        return blocks_held(tables, tokens, chunk, block_size) * block_bytes

    kv_memory = settings.kv_memory
    if kv_memory is None:
        # More than all rows at full length can hold would stay unused.
        useful = max_running * bytes_of(wanted_len)
        kv_memory = min(room(max_running, _batched_tokens(settings, profile, max_running, wanted_len)), useful)
    num_blocks = max(0, kv_memory // block_bytes)
    if num_blocks < 2 * count:
        raise SettingsError(
            f"kv_memory {kv_memory} bytes holds {num_blocks} blocks of {block_bytes} bytes; at least {2 * count} are "
            "needed",
            "kv_memory",
        )
    capacity = longest_held(tables, num_blocks, chunk, block_size, num_blocks * block_size)
    if capacity < wanted_len and settings.max_model_len is not None:
        raise SettingsError(
            f"max_model_len {wanted_len} does not fit kv_memory: {kv_memory} bytes hold {capacity} tokens; "
            f"{bytes_of(wanted_len)} bytes are needed",
            "max_model_len",
        )
    if capacity < wanted_len:
        log.warning("max_model_len is %d of the model's %d: that is what kv_memory holds", capacity, wanted_len)
        wanted_len = capacity
    max_batched = _batched_tokens(settings, profile, max_running, wanted_len)
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
    return CacheSizes(
        num_blocks,
        block_size,
        wanted_len,
        max_running,
        max_batched,
        num_blocks * block_bytes,
        _host_blocks(settings, num_blocks, block_bytes, host_room),
    )


def _batched_tokens(settings: EngineSettings, profile: BatchProfile, max_running: int, longest: int) -> int:
    if settings.max_batched_tokens is not None:
        return settings.max_batched_tokens
    return max(profile.max_batched_tokens, max_running, 0 if settings.chunked_prefill else longest)


def _host_blocks(settings: EngineSettings, num_blocks: int, block_bytes: int, room: int | None) -> int:
    if settings.preemption == "recompute":
        if settings.swap_memory is not None:
            raise SettingsError("swap_memory needs preemption swap: recompute keeps nothing", "swap_memory")
        return 0
    if settings.swap_memory is None:
        share = int(num_blocks * _SWAP_SHARE)
        return max(1, share if room is None else min(share, room // block_bytes))
    if room is not None and settings.swap_memory > room:
        raise SettingsError(
            f"swap_memory {settings.swap_memory} bytes is more than the host can give: {room} bytes; raise the pod's "
            "memory, or reduce swap_memory",
            "swap_memory",
        )
    if settings.swap_memory < block_bytes:
        raise SettingsError(
            f"swap_memory {settings.swap_memory} bytes holds no block of {block_bytes} bytes", "swap_memory"
        )
    return settings.swap_memory // block_bytes
