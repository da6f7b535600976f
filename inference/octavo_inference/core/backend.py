"""What the engine needs of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.model_input import Batch, Float32, RowStep, StepResult

HostBlocks = NDArray[np.generic]


class Backend(Protocol):
    """A loaded model on a device with its KV pool. Chosen once at start; used from one thread."""

    name: str
    """For people: "reference", "cpu (avx2)", ..."""
    block_size: int
    num_blocks: int
    vocab_size: int

    def step(self, batch: Batch) -> StepResult:
        """Run the model over the batch, store K and V, sample. Raises nothing a single request can cause."""
        ...

    def logits(self, batch: Batch) -> Float32:
        """The step without sampling: logits [R, vocab] in float32 of the sample rows. For tests and evaluation."""
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


class StepHandle(Protocol):
    """A step that is on its way."""

    def collect(self) -> StepResult:
        """Wait for it. Raises what `Backend.step` does."""
        ...


@runtime_checkable
class RowBackend(Backend, Protocol):
    """A backend that keeps the row table and writes chosen tokens into it.

    So a step may be launched before the tokens of the one before are known here.
    """

    def launch(self, step: RowStep) -> StepHandle:
        """Start a step; the ones before it are computed first. Steps are collected in the order of their launch."""
        ...

    def idle(self) -> bool:
        """Use a moment without work to prepare for later ones, for 0.2 s at most; whether more is left to prepare."""
        ...
