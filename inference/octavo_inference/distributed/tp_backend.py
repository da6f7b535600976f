"""The backend of a model that is spread over several GPUs, as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo_inference.common.errors import SettingsError
from octavo_inference.core.backend import Backend, HostBlocks, StepHandle
from octavo_inference.core.model_input import RowStep, StepResult
from octavo_inference.distributed.executor import RankExecutor
from octavo_inference.distributed.messages import ClearBlocks, CopyBlocks, Idle, Launch


@dataclass(frozen=True, slots=True)
class _PendingStep:
    own: StepHandle
    ranks: RankExecutor

    def collect(self) -> StepResult:
        with self.ranks.in_step():
            return self.own.collect()


class TensorParallel:
    """`Backend` over `own`, that of rank 0, and the other ranks, which hold the rest of each layer.

    The others are told a call before rank 0 makes it. Everything they decide follows from the calls, so collectives
    match; all choose the same tokens, and rank 0's are the answer. Raises `RankLostError` when they no longer go
    together.
    """

    def __init__(self, own: Backend, ranks: RankExecutor) -> None:
        self.name = f"{own.name}, {ranks.size} ranks"
        self.block_size = own.block_size
        self.num_blocks = own.num_blocks
        self.vocab_size = own.vocab_size
        self.steps_ahead = own.steps_ahead
        self._own = own
        self._ranks = ranks

    def launch(self, step: RowStep) -> StepHandle:
        """Start a step on all ranks."""
        self._ranks.tell(Launch(step=replace(step, table=None)))
        with self._ranks.in_step():
            return _PendingStep(self._own.launch(step), self._ranks)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all layers."""
        self._ranks.tell(CopyBlocks(pairs=list(pairs)))
        with self._ranks.in_step():
            self._own.copy_blocks(pairs)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        self._ranks.tell(ClearBlocks(blocks=list(blocks)))
        with self._ranks.in_step():
            self._own.clear_blocks(blocks)

    def idle(self) -> bool:
        """Let every rank prepare the same for later steps; whether more is left to prepare."""
        self._ranks.tell(Idle())
        with self._ranks.in_step():
            return self._own.idle()

    def to_host(self, blocks: Sequence[int]) -> HostBlocks:
        """Raises `SettingsError`: a block's KV is spread over processes, and none keeps it in RAM."""
        raise _no_swap(len(blocks))

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:  # noqa: ARG002 -- there are none
        """Raises `SettingsError`, as `to_host` does."""
        raise _no_swap(len(blocks))


def _no_swap(blocks: int) -> SettingsError:
    return SettingsError(f"{blocks} blocks cannot move to RAM and back with tensor_parallel_size above 1", "preemption")
