"""What the engine needs of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import RowStep, StepResult

HostBlocks = NDArray[np.generic]


class StepHandle(Protocol):
    """A launched step."""

    def collect(self) -> StepResult:
        """Wait for it. Raises nothing a single request can cause."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was computed when it was launched."""

    result: StepResult

    def collect(self) -> StepResult:
        """Its result."""
        return self.result


class Backend(Protocol):
    """A loaded model on a device with its KV pool. Chosen once at start; used from one thread."""

    name: str
    """For people: "reference", "cpu (avx2)", ..."""
    block_size: int
    num_blocks: int
    vocab_size: int
    steps_ahead: int
    """How many steps may be launched before the tokens of this one are collected.

    0 where they are read from the engine's row table; 1 where the backend keeps a copy and writes them there.
    """

    def launch(self, step: RowStep) -> StepHandle:
        """Run the model over a step, store K and V, sample: now, or behind the steps launched before.

        Steps are collected in the order of their launch. Raises nothing a single request can cause.
        """
        ...

    def idle(self) -> bool:
        """Use a moment without work to prepare for later ones, for 0.2 s at most; whether more is left to prepare."""
        ...

    def to_host(self, blocks: Sequence[int]) -> HostBlocks:
        """A copy of the KV of whole blocks, all layers, in the host's memory: an array [block, ...]."""
        ...

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:
        """Copy rows of what `to_host` gave back into as many blocks."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all layers."""
        ...

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        ...
