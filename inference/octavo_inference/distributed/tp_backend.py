"""The engine's backend for a model over several GPUs."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import SettingsError
from octavo_inference.core.backend import Backend, HostBlocks, PreparedAdapter, StepHandle, WithoutStates
from octavo_inference.core.model_input import RowChange, RowStep, StepResult
from octavo_inference.distributed.adapter_sender import AdapterSender
from octavo_inference.distributed.executor import RankExecutor
from octavo_inference.distributed.messages import (
    Choose,
    ClearBlocks,
    CopyBlocks,
    ForgetAdapter,
    Idle,
    Launch,
    LoadAdapter,
)
from octavo_inference.models.adapter import Adapter


@dataclass(frozen=True, slots=True)
class _PendingStep:
    own: StepHandle
    ranks: RankExecutor

    def choose(self, masks: Sequence[RowChange]) -> None:
        self.ranks.send_all(Choose(masks=list(masks)))
        with self.ranks.in_step():
            self.own.choose(masks)

    def collect(self) -> StepResult:
        with self.ranks.in_step():
            return self.own.collect()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SpreadAdapter:
    """An adapter that all ranks have prepared. The others keep their parts under `number` as long as this exists."""

    number: int
    own: PreparedAdapter
    nbytes: int
    """Bytes of host memory on all ranks, whose parts have about the same size."""


class TensorParallel(WithoutStates):
    """`Backend` over `own`, the backend of rank 0, and the other ranks, which hold the rest of each layer.

    Rank 0 sends each call to the others before it runs the call itself. All decisions of a rank follow from the calls,
    so collectives match. All ranks sample the same tokens, and rank 0's are the result. Raises `RankLostError` once the
    ranks are out of step.
    """

    def __init__(self, own: Backend, ranks: RankExecutor, adapters: AdapterSender) -> None:
        self.name = f"{own.name}, {ranks.size} ranks"
        self.block_size = own.block_size
        self.num_blocks = own.num_blocks
        self.layout = own.layout
        self.vocab_size = own.vocab_size
        self.hidden_size = own.hidden_size
        self.steps_ahead = own.steps_ahead
        self.decode_runs = own.decode_runs
        self.max_prompt_scores = own.max_prompt_scores
        self.adapter_slots = own.adapter_slots
        self._own = own
        self._ranks = ranks
        self._adapters = adapters
        self._numbers = itertools.count()
        # Adapters that the other ranks can forget. Any thread adds to it, the engine's sends the calls.
        self._unused: deque[int] = deque()

    def prepare_adapter(self, adapter: Adapter) -> SpreadAdapter:
        """Prepare an adapter on all ranks, in any thread, one at a time. Raises `ModelError` if one of them cannot."""
        number = next(self._numbers)
        try:
            own = self._adapters.prepare(number, adapter, self._own.prepare_adapter)
            spread = SpreadAdapter(number, own, own.nbytes * self._ranks.size)
        except BaseException:
            self._unused.append(number)
            raise
        weakref.finalize(spread, self._unused.append, number)
        return spread

    def load_adapter(self, slot: int, adapter: SpreadAdapter | None) -> None:
        """Put an adapter into a slot of all ranks, or empty it, for the next launch."""
        self._forget_unused()
        self._ranks.send_all(LoadAdapter(slot=slot, number=None if adapter is None else adapter.number))
        with self._ranks.in_step():
            self._own.load_adapter(slot, None if adapter is None else adapter.own)

    def launch(self, step: RowStep) -> StepHandle:
        """Launch a step on all ranks."""
        self._forget_unused()
        self._ranks.send_all(Launch(step=replace(step, table=None)))
        with self._ranks.in_step():
            return _PendingStep(self._own.launch(step), self._ranks)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all layers."""
        self._ranks.send_all(CopyBlocks(pairs=list(pairs)))
        with self._ranks.in_step():
            self._own.copy_blocks(pairs)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        self._ranks.send_all(ClearBlocks(blocks=list(blocks)))
        with self._ranks.in_step():
            self._own.clear_blocks(blocks)

    def part_seconds(self) -> dict[str, float]:
        """Those of rank 0."""
        return self._own.part_seconds()

    def expert_tokens(self) -> NDArray[np.int64] | None:
        """Those of rank 0: all ranks route the same tokens."""
        return self._own.expert_tokens()

    def idle(self) -> bool:
        """Let every rank prepare the same later steps. Returns whether more is left to prepare."""
        self._forget_unused()
        self._ranks.send_all(Idle())
        with self._ranks.in_step():
            return self._own.idle()

    def _forget_unused(self) -> None:
        """Let the other ranks free adapters. Their calls to load them were sent before."""
        while self._unused:
            self._ranks.send_all(ForgetAdapter(number=self._unused.popleft()))

    def to_host(self, blocks: Sequence[int]) -> HostBlocks:
        """Raises `SettingsError`: a block's KV is sharded over processes, and none keeps it in RAM."""
        raise _no_swap(len(blocks))

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:  # noqa: ARG002 -- unsupported
        """Raises `SettingsError`, like `to_host`."""
        raise _no_swap(len(blocks))


def _no_swap(blocks: int) -> SettingsError:
    return SettingsError(f"{blocks} blocks cannot move to RAM and back with tensor_parallel_size above 1", "preemption")
