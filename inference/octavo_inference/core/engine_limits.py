"""The sizes and modes of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.config.cache_policy import PolicyName


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Resolved engine sizes, in tokens and sequences; `max_queued` is the queue bound that the sender enforces.

    `prefill_slowdown` bounds how much prompt tokens may lengthen a step (`prefill_budget`); None sets no bound.
    `overlap` launches the next step before the tokens of the last one are collected, if the backend supports it.
    `static_wait`: None for continuous batching, else the seconds that a static batch waits to fill. `host_blocks`: how
    many blocks of preempted sequences the host may keep; 0 means recompute. The state of a sequence, of a model with
    state layers, counts as `host_state_blocks` of them. `cache_policy` is the default for requests without one.
    A step samples at most `max_samples` tokens, guessed ones included; 0 for one of each sequence. The host keeps
    `max_cached_adapters`, or as many as the backend has slots for, of `adapter_memory` bytes; None for no limit.
    """

    max_model_len: int
    max_running: int
    max_batched_tokens: int
    max_queued: int
    chunked_prefill: bool = True
    prefix_caching: bool = True
    static_wait: float | None = None
    prefill_slowdown: float | None = None
    host_blocks: int = 0
    host_state_blocks: int = 0
    cache_policy: PolicyName = "chat"
    overlap: bool = True
    max_samples: int = 0
    max_cached_adapters: int = 0
    adapter_memory: int | None = None
