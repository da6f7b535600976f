"""The load reports: what a pod and a gateway say of themselves, sampled by the operator and by gateways.

One small JSON object each. Counters only grow within one `start_time`; a reader that sees another `start_time`
starts its differences afresh.
"""

from __future__ import annotations

from typing import Final

import msgspec

from octavo_protocol.hashing import KEY_BYTES


class StepSums(msgspec.Struct, frozen=True, kw_only=True):
    """Running sums over engine steps: enough to fit `seconds = a + b*prefill + d*rows + c*context` by least squares.

    Tokens and rows are counts per step, `seconds` the wall time of the step. Two factors in a name: sum of products.
    """

    count: int = 0
    seconds: float = 0.0
    prefill: int = 0
    rows: int = 0
    context: int = 0
    prefill_prefill: int = 0
    prefill_rows: int = 0
    prefill_context: int = 0
    rows_rows: int = 0
    rows_context: int = 0
    context_context: int = 0
    seconds_prefill: float = 0.0
    seconds_rows: float = 0.0
    seconds_context: float = 0.0
    idle_rows: int = 0
    """Rows that finished sequences of a static batch kept from others; always 0 with continuous batching."""
    held_rows: int = 0
    """Rows that sequences held, decoding or not."""
    unused_slots: int = 0
    """Token slots of KV blocks that sequences held and had not filled."""


class CacheDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in a pod's prefix cache since the reader last asked: block keys, to be cut by `hashing.keys`.

    A key is in one of both: `added` blocks can be found now, `removed` ones cannot; the reader may have known either
    before. `sequence` is what to ask with next time (`names.QUERY_CACHE_AFTER`); 0, or one that the pod does not know
    or no longer reaches back to, gets all of it: with `reset` the reader forgets what it knew of the pod.
    """

    sequence: int
    reset: bool = False
    added: bytes = b""
    removed: bytes = b""

    def __post_init__(self) -> None:
        """Raise `ValueError` for half a key: `decode_load` makes it a `msgspec.ValidationError`."""
        for name, data in (("added", self.added), ("removed", self.removed)):
            if len(data) % KEY_BYTES:
                raise ValueError(f"{name}: {len(data)} bytes are no whole number of keys of {KEY_BYTES} bytes")


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of one engine.

    `pinned` blocks have ref > 0; `cached` blocks (ref = 0, reusable) are free capacity and are counted apart.
    `running`, `waiting` are sequences; `waiting_tokens` is the prompt tokens of waiting sequences,
    `uncached_prompt_tokens` the prompt tokens (waiting and running) that still have to be computed.
    `oldest_wait` is seconds.
    """

    block_size: int
    blocks_total: int
    blocks_pinned: int
    blocks_cached: int
    running: int
    waiting: int
    waiting_tokens: int
    uncached_prompt_tokens: int
    oldest_wait: float
    preemptions: int
    requests: int
    prompt_tokens: int
    generation_tokens: int
    prefix_hit_tokens: int
    max_running: int
    max_batched_tokens: int
    max_waiting: int
    swaps: int = 0
    """Preempted sequences whose KV was kept on the host; the other preemptions are computed again."""
    checks: int = 0
    """Times the pool's books were compared with the sequences and found right."""
    unused_slots: int = 0
    """Token slots of KV blocks that sequences hold and have not filled."""
    recomputed: int = 0
    """Tokens computed again because their sequence was preempted."""
    steps: StepSums = msgspec.field(default_factory=StepSums)

    @property
    def kv_occupancy(self) -> float:
        """Share of the pool that live sequences hold, 0..1."""
        return self.blocks_pinned / self.blocks_total if self.blocks_total else 0.0


class LoadReport(EngineStats, frozen=True, kw_only=True):
    """State of one inference pod: that of its engine, and of the server around it.

    `start_time` is Unix time of the process start; `cold_start` is seconds from there to ready, 0 while not ready.
    """

    sequence: int
    start_time: float
    model: str
    ready: bool
    draining: bool
    cold_start: float = 0.0
    cache: CacheDelta | None = None
    """Only for readers that ask for it."""


TTFT_BOUNDS: Final = tuple(0.001 * 2 ** (index / 4) for index in range(76))
"""Upper bounds in seconds of the classes that times to the first token are counted in: 1 ms to 7 min, 19 % wide."""


class TrackTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one track answered: all of it, errors (5xx, not reached, or broken off), streams by time to first token.

    `ttft` counts by class of `TTFT_BOUNDS`, the last one for all above; empty when there was no stream.
    """

    requests: int = 0
    errors: int = 0
    ttft: list[int] = msgspec.field(default_factory=list)


class CanaryTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Both tracks since `step` began at this gateway."""

    step: str
    stable: TrackTraffic
    canary: TrackTraffic


class ModelTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway knows of one LLMDeployment. `arrivals` and `arrival_prompt_tokens` are counters."""

    namespace: str
    name: str
    arrivals: int
    arrival_prompt_tokens: int
    in_flight: int
    held: int
    held_prompt_tokens: int
    oldest_hold: float
    last_arrival: float
    """Unix time of the newest request; 0 when there was none."""
    pods: dict[str, int] = {}
    """Tokens of the requests in flight, by pod."""
    canary: CanaryTraffic | None = None
    """Only while the deployment has a canary."""


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of one gateway replica."""

    sequence: int
    start_time: float
    models: list[ModelTraffic]


def encode(report: LoadReport | GatewayReport) -> bytes:
    """JSON of a report."""
    return msgspec.json.encode(report)


def decode_load(data: bytes) -> LoadReport:
    """A pod's report. Raises `msgspec.ValidationError` naming the field when it is malformed."""
    return msgspec.json.decode(data, type=LoadReport)


def decode_gateway(data: bytes) -> GatewayReport:
    """A gateway's report. Raises `msgspec.ValidationError` naming the field when it is malformed."""
    return msgspec.json.decode(data, type=GatewayReport)
