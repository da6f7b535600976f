"""The interface between the engine and a device backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import ModelError
from octavo_inference.core.model_input import RowChange, RowStep, StepResult
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.layer_groups import PoolLayout

HostBlocks = NDArray[np.generic]
PreparedAdapter = Any
"""An adapter in a backend's own form, in host memory. Its `nbytes` are bytes of it."""


class StepHandle(Protocol):
    """Handle of a launched step."""

    def choose(self, masks: Sequence[RowChange]) -> None:
        """Apply the masks of a step with `guided` rows, then sample. To be called before the next step's launch.

        The masks are in the engine's row table, too. Not for other steps, which sample on their own.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the step and return its result. A single request cannot make it raise."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """Handle of a step that `launch` computed synchronously."""

    result: StepResult

    def choose(self, masks: Sequence[RowChange]) -> None:  # noqa: ARG002 -- see below
        """Raises `RuntimeError`: the step has sampled already."""
        raise RuntimeError("the masks of a step without guided rows")

    def collect(self) -> StepResult:
        """Return the result."""
        return self.result


@dataclass(slots=True)
class ComputedStep:
    """Handle of a step with guided rows that `launch` computed. `sample` samples with the table's masks."""

    sample: Callable[[], StepResult]
    result: StepResult | None = None

    def choose(self, masks: Sequence[RowChange]) -> None:  # noqa: ARG002 -- the table has them
        """Sample."""
        self.result = self.sample()

    def collect(self) -> StepResult:
        """Return the result."""
        if self.result is None:
            raise RuntimeError("a step with guided rows is collected before its masks are there")
        return self.result


class Backend(Protocol):
    """A loaded model on a device, with its KV pool. Selected once at start; used from one thread."""

    name: str
    """Display name: "reference", "cpu (avx2)", ..."""
    block_size: int
    num_blocks: int
    layout: PoolLayout
    """The groups of layers that have block tables of their own. A block holds tokens of the layers of one group."""
    vocab_size: int
    hidden_size: int
    """Elements of a hidden state; 0 if the backend cannot pool them."""
    steps_ahead: int
    """How many later steps may be launched before the tokens of this one are collected.

    0 if the backend reads tokens from the engine's row table; 1 if it keeps a copy and writes sampled tokens there.
    """

    decode_runs: bool
    """True if a launch may run several decode steps (`RowStep.run`). Not together with `steps_ahead`."""

    state_slots: int
    """Slots for the states of sequences; 0 for models without state layers (`models.layers.StateShape`).

    The sequence in row r of the row table owns slot r. Slots from the number of rows on hold snapshots for the prefix
    cache, which only the copies below read and write.
    """

    max_prompt_scores: int | None
    """How many tokens of prompts with log-probabilities a step may compute.

    None for any number: the backend scores them in pieces.
    """

    adapter_slots: int
    """Adapters that a step may use; 0 if the backend takes none."""

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:
        """Bring an adapter into the form that `load_adapter` takes, in any thread, while steps run.

        Raises `ModelError` for changes of matrices that the backend cannot change.
        """
        ...

    def load_adapter(self, slot: int, adapter: PreparedAdapter | None) -> None:
        """Put an adapter into a slot, or empty it: for the next launch. Those before it still compute with the old one.

        Rows whose result is dropped may have used either.
        """
        ...

    def launch(self, step: RowStep) -> StepHandle:
        """Run the model over a step, store K and V, update states, sample, and score prompt tokens.

        State layers continue from the state in the slot of a sequence's row, and leave there the state after its last
        query token. A sequence whose first query token is at position 0 starts from zeros: the slot's content is then
        arbitrary, even NaN. Its state is not read.

        A step with `guided` rows samples when its masks arrive (`StepHandle.choose`). The step may also be queued
        behind earlier launches. Steps are collected in launch order. A single request cannot make it raise.
        """
        ...

    def part_seconds(self) -> dict[str, float]:
        """Seconds that the steps so far spent in each part of the model; empty if the backend does not measure them."""
        ...

    def expert_tokens(self) -> NDArray[np.int64] | None:
        """Tokens that each expert of a mixture computed so far, [layers, experts]; waits for the device.

        Rows of layers without experts are zero. None for a model without experts, or a backend that does not count.
        """
        ...

    def idle(self) -> bool:
        """Use an idle moment of at most 0.2 s to prepare later steps. Returns whether more is left to prepare."""
        ...

    def to_host(self, blocks: Sequence[int]) -> HostBlocks:
        """Copy the KV of whole blocks, all their layers, to host memory: an array [block, ...]."""
        ...

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:
        """Copy rows of an array from `to_host` into the same number of blocks."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all their layers."""
        ...

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all their layers."""
        ...

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of whole slots (source, destination), all layers, in launch order with the steps.

        The pairs of a call are independent: no destination occurs twice, or as a source.
        """
        ...

    def states_to_host(self, slots: Sequence[int]) -> HostBlocks:
        """Copy the states of whole slots, all layers, to host memory: an array [slot, ...]."""
        ...

    def states_from_host(self, saved: HostBlocks, slots: Sequence[int]) -> None:
        """Copy rows of an array from `states_to_host` into the same number of slots."""
        ...


class WithoutAdapters:
    """The part of `Backend` about adapters, of a backend that takes none."""

    adapter_slots = 0

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:  # noqa: ARG002 -- see below
        """Raises `ModelError`."""
        raise ModelError("the backend of this model takes no adapters")

    def load_adapter(self, slot: int, adapter: PreparedAdapter | None) -> None:  # noqa: ARG002 -- see below
        """Raises `RuntimeError`."""
        raise RuntimeError(f"an adapter for slot {slot} of a backend that takes none")


class WithoutStates:
    """The part of `Backend` about states, of a backend without state layers."""

    state_slots = 0

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Raises `RuntimeError`."""
        raise _no_states(len(pairs))

    def states_to_host(self, slots: Sequence[int]) -> HostBlocks:
        """Raises `RuntimeError`."""
        raise _no_states(len(slots))

    def states_from_host(self, saved: HostBlocks, slots: Sequence[int]) -> None:  # noqa: ARG002 -- there are none
        """Raises `RuntimeError`."""
        raise _no_states(len(slots))


def _no_states(count: int) -> RuntimeError:
    return RuntimeError(f"{count} states of a model without state layers")
