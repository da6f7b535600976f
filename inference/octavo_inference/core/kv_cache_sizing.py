"""Sizes the KV pool and the batch from the settings and the available memory. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import BatchProfile, EngineSettings
from octavo_protocol.kv_tables import KvTables, blocks_held, longest_held, table_count
from octavo_protocol.state_slots import StateSlots, most_useful, state_slots

log = logging.getLogger(__name__)

# Share of the pool size. Only a few preempted sequences have to be kept at a time.
_SWAP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Resolved sizes of the KV pool and the batch. `kv_memory` holds blocks and states.

    There are `state_slots` states of `state_bytes`, one for each running sequence and the others snapshots; none
    without state layers.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_running: int
    max_batched_tokens: int
    kv_memory: int
    host_blocks: int
    block_bytes: int
    state_slots: int = 0
    state_bytes: int = 0

    @property
    def host_state_blocks(self) -> int:
        """Blocks of the host that a state takes the place of."""
        return -(-self.state_bytes // self.block_bytes) if self.block_bytes else 0

    @property
    def swap_memory(self) -> int:
        """Bytes of preempted sequences that the host can keep."""
        return self.host_blocks * self.block_bytes


def fit(
    settings: EngineSettings,
    profile: BatchProfile,
    *,
    max_positions: int,
    token_bytes: int,
    block_size: int,
    state_bytes: int = 0,
    room: Callable[[int, int], int],
    host_room: int | None = None,
    tables: Sequence[KvTables] = (),
    steps_ahead: int = 0,
    whole: bool = False,
) -> CacheSizes:
    """Resolve all sizes.

    `token_bytes` is the size of one token's K and V over all layers, `block_size` the backend's default, and
    `state_bytes` the size of a sequence's states over all layers. `tables` are the block tables of a sequence (none:
    one with full attention), each with an equal part of a token's bytes. `steps_ahead` is how many steps are launched
    before the oldest is collected. `room(rows, tokens)` returns how many bytes the KV pool may take in addition to the
    buffers of steps with that many sequences and tokens. `host_room` bounds the host memory for preempted sequences if
    the pool is not in host memory. `whole`: an encoder computes each prompt in one step, and needs its blocks in that
    step alone.
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
    chunked = settings.chunked_prefill and not whole
    chunk = _batched_tokens(settings, profile, max_running, wanted_len, chunked=chunked) * (1 + steps_ahead)

    def bytes_of(tokens: int) -> int:
        return blocks_held(tables, tokens, chunk, block_size) * block_bytes

    kv_memory = settings.kv_memory
    if kv_memory is None:
        # More than all rows at full length can hold would stay unused.
        useful = max_running * bytes_of(wanted_len)
        if whole:
            # The tokens of a step; of each sequence a partial block, and one that admission keeps free.
            useful = (-(-chunk // block_size) + 2 * max_running) * block_bytes
        useful += most_useful(max_running, state_bytes, settings.state_snapshots)
        kv_memory = min(room(max_running, chunk // (1 + steps_ahead)), useful)
    states = _states(settings, kv_memory, max_running, state_bytes, 2 * count * block_bytes)
    max_running, kv_memory = states.rows, kv_memory - states.nbytes
    # Without attention layers, blocks only count tokens.
    needed = max_running * blocks_held(tables, wanted_len, chunk, block_size)
    num_blocks = max(0, kv_memory // block_bytes) if block_bytes else needed
    if num_blocks < 2 * count:
        raise SettingsError(
            f"kv_memory {kv_memory} bytes holds {num_blocks} blocks of {block_bytes} bytes; at least {2 * count} are "
            "needed",
            "kv_memory",
        )
    capacity = longest_held(tables, num_blocks, chunk, block_size, num_blocks * block_size)
    of_states = f" and {states.slots} states of {state_bytes} bytes" if state_bytes else ""
    if capacity < wanted_len and settings.max_model_len is not None:
        raise SettingsError(
            f"max_model_len {wanted_len} does not fit kv_memory: {kv_memory + states.nbytes} bytes hold {capacity} "
            f"tokens{of_states}; {bytes_of(wanted_len) + states.nbytes} bytes are needed",
            "max_model_len",
        )
    if capacity < wanted_len:
        log.warning("max_model_len is %d of the model's %d: that is what kv_memory holds", capacity, wanted_len)
        wanted_len = capacity
    max_batched = _batched_tokens(settings, profile, max_running, wanted_len, chunked=chunked)
    if max_batched < max_running:
        raise SettingsError(
            f"max_batched_tokens {max_batched} is less than max_running_requests {max_running}: one token each",
            "max_batched_tokens",
        )
    if max_batched < wanted_len and whole:
        raise SettingsError(
            f"max_batched_tokens {max_batched} is less than max_model_len {wanted_len}, and an encoder computes a "
            "prompt in one step: raise max_batched_tokens, or reduce max_model_len",
            "max_batched_tokens",
        )
    if max_batched < wanted_len and not chunked:
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
        num_blocks * block_bytes + states.nbytes,
        _host_blocks(settings, num_blocks * block_bytes + states.nbytes, block_bytes, host_room)
        if block_bytes and not whole
        else 0,
        block_bytes,
        states.slots,
        state_bytes,
    )


def _states(settings: EngineSettings, memory: int, rows: int, state_bytes: int, rest: int) -> StateSlots:
    """The slots for states; `rest` bytes of the memory have to be left."""
    given = settings.max_running_requests is not None
    found = state_slots(
        memory,
        rows,
        state_bytes,
        rows_given=given,
        snapshots=settings.state_snapshots,
        caching=settings.prefix_caching,
    )
    if not state_bytes or found.nbytes + rest <= memory:
        if found.rows < rows:
            log.warning(
                "%d sequences run at a time, not %d: the state of each takes %d of %d bytes of kv_memory; more memory "
                "or max_running_requests changes it",
                found.rows,
                rows,
                state_bytes,
                memory,
            )
        return found
    if settings.state_snapshots and found.rows * state_bytes + rest <= memory:
        raise SettingsError(
            f"state_snapshots {settings.state_snapshots} does not fit kv_memory: {memory} bytes hold "
            f"{(memory - rest) // state_bytes} states of {state_bytes} bytes, {found.rows} of running sequences",
            "state_snapshots",
        )
    raise SettingsError(
        f"kv_memory {memory} bytes is less than the states of {found.rows} running sequences, {state_bytes} each, "
        f"and two blocks: {found.rows * state_bytes + rest} bytes; raise kv_memory, or reduce max_running_requests",
        "kv_memory" if not given else "max_running_requests",
    )


def _batched_tokens(
    settings: EngineSettings, profile: BatchProfile, max_running: int, longest: int, *, chunked: bool
) -> int:
    if settings.max_batched_tokens is not None:
        return settings.max_batched_tokens
    return max(profile.max_batched_tokens, max_running, 0 if chunked else longest)


def _host_blocks(settings: EngineSettings, pool: int, block_bytes: int, room: int | None) -> int:
    if settings.preemption == "recompute":
        if settings.swap_memory is not None:
            raise SettingsError("swap_memory needs preemption swap: recompute keeps nothing", "swap_memory")
        return 0
    if settings.swap_memory is None:
        share = int(pool * _SWAP_SHARE) // block_bytes
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
