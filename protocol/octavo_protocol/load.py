"""Load reports of pods and gateways, polled by the operator and by gateways.

Each is one small JSON object. Counters never decrease within one `start_time`; with another `start_time` they restart
at 0, so a reader must not subtract the previous values.
"""

from __future__ import annotations

from typing import Final

import msgspec

from octavo_protocol.adapters import AdapterReport
from octavo_protocol.hashing import KEY_BYTES


class StepSums(msgspec.Struct, frozen=True, kw_only=True):
    """Running sums over engine steps: enough to fit `seconds = a + b*prefill + d*rows + c*context` by least squares.

    Tokens and rows are counts per step, `seconds` the wall time of the step. A name with two factors is a sum of
    products.
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
    """Rows that finished sequences of a static batch still occupied; always 0 with continuous batching."""
    held_rows: int = 0
    """Rows that sequences occupied, decoding or not."""
    unused_slots: int = 0
    """Unfilled token slots in KV blocks held by sequences."""


class CacheDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a pod's prefix cache since the reader's last request: concatenated block keys (`hashing.keys`).

    A key is in one of both: `added` blocks are in the cache now, `removed` ones are not; the reader may have known
    either state before. The next request passes `sequence` (`names.QUERY_CACHE_AFTER`). For 0, or a number that the pod
    does not know or no longer has in its log, the pod returns all keys with `reset`: the reader replaces its state.
    """

    sequence: int
    reset: bool = False
    added: bytes = b""
    removed: bytes = b""

    def __post_init__(self) -> None:
        """Raise `ValueError` for an incomplete key; `decode_load` turns it into a `msgspec.ValidationError`."""
        for name, data in (("added", self.added), ("removed", self.removed)):
            if len(data) % KEY_BYTES:
                raise ValueError(f"{name}: {len(data)} bytes are not a multiple of {KEY_BYTES}, the size of a key")


class ExpertLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly tokens were spread over the experts of a mixture, in the last period with enough of them.

    `median` and `worst` are of the layers: the tokens of the layer's busiest expert divided by the mean of its experts.
    1 is even; with a layer's n experts on n devices, a step waits for the busiest one. `unused`: share of the experts
    of all layers that computed no token, 0..1.
    """

    median: float
    worst: float
    unused: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of one engine.

    `pinned` blocks have a reference count above 0; `cached` blocks (count 0, reusable) are free capacity and counted
    separately. `running` and `waiting` count sequences; `waiting_tokens`: prompt tokens of waiting sequences;
    `uncached_prompt_tokens`: prompt tokens of waiting and running sequences that are not computed yet. `oldest_wait` is
    in seconds.
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
    """Preempted sequences whose KV was swapped to host memory; other preempted sequences are recomputed."""
    checks: int = 0
    """Passed integrity checks of the block pool against the sequences."""
    unused_slots: int = 0
    """Unfilled token slots in KV blocks held by sequences."""
    recomputed: int = 0
    """Tokens computed again after preemption."""
    deferred: int = 0
    """Those of the waiting sequences that wait for a sibling to compute their common prompt, not for capacity."""
    state_slots: int = 0
    """Slots for states of running sequences and for snapshots; 0 for models without state layers."""
    state_slots_used: int = 0
    """Slots of running sequences, and of snapshots that the prefix cache can find."""
    state_snapshots: int = 0
    """Those of `state_slots_used` with a snapshot."""
    pooled_requests: int = 0
    """Those of `requests` that ask for an embedding: they generate no token."""
    steps: StepSums = msgspec.field(default_factory=StepSums)
    expert_load: ExpertLoad | None = None
    """None for models without experts, and before the first period."""

    @property
    def kv_occupancy(self) -> float:
        """Share of the KV pool that live sequences hold, 0..1."""
        return self.blocks_pinned / self.blocks_total if self.blocks_total else 0.0


class LoadReport(EngineStats, frozen=True, kw_only=True):
    """State of one inference pod: its engine's stats, and the state of its server.

    `start_time`: Unix time of the process start; `cold_start`: seconds from then to ready, 0 while not ready.
    """

    sequence: int
    start_time: float
    model: str
    ready: bool
    draining: bool
    cold_start: float = 0.0
    cache: CacheDelta | None = None
    """Only in responses to requests with `names.QUERY_CACHE_AFTER`."""
    adapters: list[AdapterReport] = []
    """The adapters that this pod offers, as models by their own names."""
    max_loaded_adapters: int = 0
    """Adapters on the device at most, those of one step; 0: the pod takes none."""


TTFT_BOUNDS: Final = tuple(0.001 * 2 ** (index / 4) for index in range(76))
"""Upper bounds in seconds of the TTFT histogram's buckets: 1 ms to 7 min, each 19 % wider than the previous."""


class TrackTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Responses of one track: requests, errors (5xx, unreachable, or broken stream), and TTFT histogram of streams.

    `ttft` has a count per bucket of `TTFT_BOUNDS`, and a last one for longer times; empty without a stream.
    """

    requests: int = 0
    errors: int = 0
    ttft: list[int] = msgspec.field(default_factory=list)


class CanaryTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of both tracks since `step` began at this gateway."""

    step: str
    stable: TrackTraffic
    canary: TrackTraffic


class ModelTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's traffic for one LLMDeployment. `arrivals` and `arrival_prompt_tokens` are counters."""

    namespace: str
    name: str
    arrivals: int
    arrival_prompt_tokens: int
    in_flight: int
    held: int
    held_prompt_tokens: int
    oldest_hold: float
    last_arrival: float
    """Unix time of the newest request; 0 before the first."""
    pods: dict[str, int] = {}
    """Tokens of in-flight requests, by pod."""
    canary: CanaryTraffic | None = None
    """Only while the deployment has a canary."""


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of one gateway replica."""

    sequence: int
    start_time: float
    models: list[ModelTraffic]


def encode(report: LoadReport | GatewayReport) -> bytes:
    """A report as JSON."""
    return msgspec.json.encode(report)


def decode_load(data: bytes) -> LoadReport:
    """Decode a pod's report. Raises `msgspec.ValidationError`, which names the field, for a malformed one."""
    return msgspec.json.decode(data, type=LoadReport)


def decode_gateway(data: bytes) -> GatewayReport:
    """Decode a gateway's report. Raises `msgspec.ValidationError`, which names the field, for a malformed one."""
    return msgspec.json.decode(data, type=GatewayReport)
