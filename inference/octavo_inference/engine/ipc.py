"""Messages between the API process and the engine process, in frames (`common.framing`).

The API process sends `Start` once and then lists of `ToEngine` messages. The engine process replies `Ready` and then
an `EngineStep` per launch, of one or several steps, or sends `EngineFailure` and exits. It replies `Asleep` to
`SleepEngine`, and `Ready` to `WakeEngine`, and `StepTimes` to `ReadStepTimes`.
"""

from __future__ import annotations

import msgspec

from octavo_inference.common.memory_plan import MemoryPlan
from octavo_inference.config.engine import DEFAULT_POOLING, PoolingName
from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.core.counters import GuidanceTotals
from octavo_inference.core.request import (
    Abort,
    OfferAdapter,
    Output,
    Request,
    ResetCache,
    SleepEngine,
    WakeEngine,
    WithdrawAdapter,
)
from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.models.task import Task
from octavo_protocol.load import EngineStats, StepSums
from octavo_protocol.server_settings import ServerSettings


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the engine process loads."""

    settings: ServerSettings


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in effect. Sizes in tokens or bytes; `phases` are (name, seconds).

    `vocab_size` counts the ids of the model, `added_ids` those behind them for tokens that adapters add.
    `hidden_size` is the number of elements of an embedding, 0 if the backend gives none; `pooling` that of the model.

    If a model spans several GPUs, sizes in bytes are per GPU, `pid` is rank 0 and `rank_pids` are the others.
    """

    backend: str
    max_model_len: int
    vocab_size: int
    added_ids: int = 0
    block_size: int
    num_blocks: int
    kv_bytes: int
    max_running_requests: int
    max_batched_tokens: int
    threads: int
    profile: str = "balanced"
    batching: str = "continuous"
    prefill_slowdown: float = 1.5
    preemption: str = "recompute"
    cache_policy: str = "chat"
    prefix_caching: bool = True
    overlap: bool = False
    cuda_graphs: int = 0
    model_digest: str = ""
    hidden_size: int = 0
    task: Task = "generate"
    pooling: PoolingName = DEFAULT_POOLING
    swap_bytes: int = 0
    adapter_slots: int = 0
    memory: MemoryPlan | None = None
    pid: int = 0
    rank_pids: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and steps can run."""

    info: EngineInfo
    stats: EngineStats


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """One iteration of the engine loop: its outputs, and the engine's state afterwards.

    `stalled`: it left sequences waiting that it could not start. `known`, `forgotten`: keys
    (`octavo_protocol.hashing.keys`) of blocks added to and removed from the prefix cache since the last message.
    `guidance`: totals so far, None while no request had any. `speculation`: the same, None without speculation.
    `adapters`: all of them, if any has changed since the last message.
    """

    outputs: list[Output]
    stats: EngineStats
    stalled: bool = False
    known: bytes = b""
    forgotten: bytes = b""
    guidance: GuidanceTotals | None = None
    speculation: SpeculationTotals | None = None
    adapters: list[EngineAdapter] | None = None


class EngineFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The last message of an engine process: a human-readable cause, and the exit status for the server."""

    message: str
    status: int = 1


class Asleep(msgspec.Struct, frozen=True, kw_only=True, tag="asleep"):
    """Weights and KV pool are released; `resident` bytes are still in use by the engine process."""

    resident: int


class ReadStepTimes(msgspec.Struct, frozen=True, tag="read_step_times"):
    """Ask for `StepTimes`."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, tag="step_times"):
    """Sums over the steps so far, and the seconds of each part of the model in them; see `Backend.part_seconds`."""

    parts: dict[str, float]
    steps: StepSums


FromEngine = Ready | EngineStep | EngineFailure | Asleep | StepTimes
ToEngine = Request | Abort | ResetCache | OfferAdapter | WithdrawAdapter | SleepEngine | WakeEngine | ReadStepTimes

decode_start = msgspec.msgpack.Decoder(Start).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_to_engine = msgspec.msgpack.Decoder(list[ToEngine]).decode
