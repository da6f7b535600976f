"""The interface between the engine and a device backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import RowChange, RowStep, StepResult

HostBlocks = NDArray[np.generic]


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
    vocab_size: int
    hidden_size: int
    """Elements of a hidden state; 0 if the backend cannot pool them."""
    steps_ahead: int
    """How many later steps may be launched before the tokens of this one are collected.

    0 if the backend reads tokens from the engine's row table; 1 if it keeps a copy and writes sampled tokens there.
    """

    decode_runs: bool
    """True if a launch may run several decode steps (`RowStep.run`). Not together with `steps_ahead`."""

    max_prompt_scores: int | None
    """How many tokens of prompts with log-probabilities a step may compute.

    None for any number: the backend scores them in pieces.
    """

    def launch(self, step: RowStep) -> StepHandle:
        """Run the model over a step, store K and V, sample, and score prompt tokens.

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
        """Copy the KV of whole blocks, all layers, to host memory: an array [block, ...]."""
        ...

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:
        """Copy rows of an array from `to_host` into the same number of blocks."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all layers."""
        ...

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        ...
