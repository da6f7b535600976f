"""CUDA graphs of decoding steps: forward and sampling of a fixed shape, recorded once and launched as one thing.

A step whose sequences have as many query tokens each runs in the smallest captured shape that holds it. What fills the
shape up has no tokens, stores nothing, and samples into the row table's last row, which is nobody's. All a graph reads
that changes from step to step lies in buffers at fixed places: the row table and `Stage`'s inputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.inputs import LaunchSize

log = logging.getLogger(__name__)

_ROUND = 8
# Kernels and arguments that the driver keeps of a graph, and a workspace of cuBLAS for the stream of captures.
_GRAPH_BYTES, _WORKSPACE_BYTES = 4 * 2**20, 64 * 2**20


@dataclass(frozen=True, slots=True, order=True)
class GraphShape:
    """Decoding steps of up to so many sequences, each with so many query tokens: 1, and more to verify guesses."""

    sequences: int
    queries: int = 1

    @property
    def size(self) -> LaunchSize:
        """What kernels are launched for: any query token may be sampled from."""
        tokens = self.sequences * self.queries
        return LaunchSize(self.sequences, tokens, tokens, self.sequences if self.queries == 1 else 0)


class Graph(Protocol):
    """Launches that were recorded."""

    @property
    def bytes(self) -> int:
        """Of the device's memory, taken for them."""
        ...

    def replay(self) -> None:
        """Launch them again, over what the same memory holds now."""
        ...


Capture = Callable[[Callable[[], object]], Graph]
"""Records what a function launches, without running it. Raises RuntimeError when the device cannot."""


@dataclass(slots=True)
class Captured:
    """A graph, the seconds its capture took, and how often it was used."""

    graph: Graph
    seconds: float
    replays: int = 0


@dataclass(slots=True)
class Graphs:
    """Which shapes are captured and which are to be, in that order: `first` at the start, `later` in idle moments.

    `record` captures a shape. Once they have `room` bytes, or a capture fails, no more is captured: what has no graph
    is launched kernel by kernel. `agreed` tells whether all ranks of a group say yes: they capture the same, or their
    collectives would be of different sizes. `failed` is told of an error, and raises what ends more than
    graphs.
    """

    record: Callable[[GraphShape], Graph]
    first: Sequence[GraphShape]
    later: list[GraphShape]
    room: int
    agreed: Callable[[bool], bool] = bool
    failed: Callable[[RuntimeError], object] = field(default=lambda _: None)
    captured: dict[GraphShape, Captured] = field(default_factory=dict)

    def start(self) -> None:
        """Capture the shapes of the start, largest first: all share the memory that the largest needs."""
        for shape in sorted(self.first, reverse=True):
            if not self._capture(shape):
                break

    def idle(self) -> bool:
        """Capture one shape more, the largest that is missing; whether there are others."""
        if self.later:
            self._capture(self.later.pop(0))
        return bool(self.later)

    def choose(self, sequences: int, tokens: int, samples: int, *, uniform: bool) -> GraphShape | None:
        """The smallest captured shape that holds a step; None where there is none."""
        queries = tokens // sequences
        if not uniform or samples > tokens:
            return None
        fitting = [s for s in self.captured if s.queries == queries and s.sequences >= sequences]
        return min(fitting, default=None)

    def replay(self, shape: GraphShape) -> None:
        """Launch a captured shape."""
        captured = self.captured[shape]
        captured.replays += 1
        captured.graph.replay()

    def _capture(self, shape: GraphShape) -> bool:
        began = time.perf_counter()
        taken = sum(captured.graph.bytes for captured in self.captured.values())
        if not self.agreed(taken < self.room):
            return self._stop(
                shape, f"the others have {taken / 2**20:.0f} of {self.room / 2**20:.0f} MiB left for them"
            )
        try:
            graph = self.record(shape)
        except RuntimeError as error:  # torch's OutOfMemoryError is one
            caught = error
        else:
            self.captured[shape] = Captured(graph, time.perf_counter() - began)
            return True
        self.failed(caught)
        return self._stop(shape, first_line(caught))

    def _stop(self, shape: GraphShape, why: str) -> bool:
        log.warning(
            "no CUDA graph of %d sequences (%s): %d shapes have one, steps of others are launched kernel by kernel",
            shape.sequences,
            why,
            len(self.captured),
        )
        self.later.clear()
        return False


def first_line(error: RuntimeError) -> str:
    """What torch says before it explains at length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shapes(limits: StepLimits) -> tuple[list[GraphShape], list[GraphShape]]:
    """Shapes for the start, in powers of two and the most there can be, and multiples of 8 between them for later."""
    most = min(limits.rows, limits.tokens)
    first = {2**i for i in range(most.bit_length())} | {most}
    later = set(range(_ROUND, most, _ROUND)) - first
    return [GraphShape(n) for n in sorted(first, reverse=True)], [GraphShape(n) for n in sorted(later, reverse=True)]


def graph_room(limits: StepLimits) -> int:
    """Bytes to leave for the graphs of all shapes.

    Our kernels and products write into buffers that are there already, so that a graph holds no activations: what is
    left is the driver's, and one workspace of the matrix library. An estimate that no card has confirmed yet; `Graphs`
    captures no more once it is used up.
    """
    return _WORKSPACE_BYTES + _GRAPH_BYTES * sum(map(len, shapes(limits)))


class CudaCapture:
    """Captures on a stream of its own, into one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], object]) -> CudaGraph:
        """Run the work once, so that whatever is set up at first use is there, and record it. Raises RuntimeError."""
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may speak to the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        torch.cuda.synchronize(self._device)
        after, _ = torch.cuda.mem_get_info(self._device)
        return CudaGraph(graph, max(0, before - after))


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A graph of the CUDA driver."""

    graph: torch.cuda.CUDAGraph
    bytes: int

    def replay(self) -> None:
        """Launch it on the current stream."""
        self.graph.replay()
