"""CUDA graphs of steps: forward and sampling of a fixed size, captured once and replayed with one launch.

A step of decodes runs in the smallest captured size that holds it, a step with prompts in its padded size
(`launch_sizes`). Padding rows have no tokens, store nothing, and sample into the row table's last row, which belongs to
no sequence. All of a graph's inputs that change from step to step are in buffers at fixed addresses: the row table and
`Stage`'s inputs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.inputs import LaunchSize
from octavo_inference.backends.cuda.launch_sizes import decode_sizes, prompt_sizes

log = logging.getLogger(__name__)

# A graph's kernels and arguments in the driver, and cuBLAS's workspace for the capture stream.
_GRAPH_BYTES, _WORKSPACE_BYTES = 4 * 2**20, 64 * 2**20


class Graph(Protocol):
    """A captured graph."""

    @property
    def bytes(self) -> int:
        """Bytes of device memory that capture allocated."""
        ...

    def replay(self) -> None:
        """Replay the graph over the current contents of the same memory."""
        ...


Capture = Callable[[Callable[[], object]], Graph]
"""Records a function's launches without running it. Raises an error of torch, Triton or the driver when that fails."""


@dataclass(slots=True)
class Captured:
    """A graph, the seconds that its capture took, and the number of its replays."""

    graph: Graph
    seconds: float
    replays: int = 0


@dataclass(slots=True)
class Graphs:
    """Captured sizes, and those still to capture, in this order: `first` at the start, `later` in idle moments.

    `record` captures a size. Capture stops when the graphs use `room` bytes or a capture fails; sizes without a graph
    are launched kernel by kernel. `agreed` returns True if all ranks of a group agree: ranks must capture the same
    sizes, or those of their collectives would differ. `failed` receives an error, and raises if it affects more than
    graphs.
    """

    record: Callable[[LaunchSize], Graph]
    first: Sequence[LaunchSize]
    later: list[LaunchSize]
    room: int
    agreed: Callable[[bool], bool] = bool
    failed: Callable[[Exception], object] = field(default=lambda _: None)
    captured: dict[LaunchSize, Captured] = field(default_factory=dict)

    def start(self) -> None:
        """Capture the sizes of the start, largest first: all graphs share the memory that the largest needs."""
        for size in sorted(self.first, reverse=True):
            if not self._capture(size):
                break

    def idle(self) -> bool:
        """Capture the next missing size; True while others are missing."""
        if self.later:
            self._capture(self.later.pop(0))
        return bool(self.later)

    def choose(self, size: LaunchSize) -> LaunchSize | None:
        """Choose the captured size for a step of a padded size; None where there is none.

        Decodes may use a larger graph of decodes, prompts that of mixed steps with as many tokens.
        """
        if size in self.captured:
            return size
        if size.kind == "decodes":
            alike = [n for n in self.captured if n.kind == "decodes" and n.adapted == size.adapted]
            fitting = [n for n in alike if n.sequences >= size.sequences]
            return min(fitting, default=None)
        mixed = replace(size, kind="mixed")
        return mixed if mixed in self.captured else None

    def replay(self, size: LaunchSize) -> None:
        """Replay the graph of a captured size."""
        captured = self.captured[size]
        captured.replays += 1
        captured.graph.replay()

    def _capture(self, size: LaunchSize) -> bool:
        began = time.perf_counter()
        taken = sum(captured.graph.bytes for captured in self.captured.values())
        if not self.agreed(taken < self.room):
            return self._stop(size, f"the others have {taken / 2**20:.0f} of {self.room / 2**20:.0f} MiB left for them")
        try:
            graph = self.record(size)
        except Exception as error:  # noqa: BLE001 -- torch, Triton and the compiler's files fail; a step needs no graph
            caught = error
        else:
            self.captured[size] = Captured(graph, time.perf_counter() - began)
            return True
        self.failed(caught)
        return self._stop(size, first_line(caught))

    def _stop(self, size: LaunchSize, why: str) -> bool:
        log.warning(
            "no CUDA graph of %d sequences and %d tokens (%s): %d sizes have one; other steps launch each kernel",
            size.sequences,
            size.tokens,
            why,
            len(self.captured),
        )
        self.later.clear()
        return False


def first_line(error: Exception) -> str:
    """The first line of an error's message; the others explain at length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def graph_sizes(limits: StepLimits) -> tuple[list[LaunchSize], list[LaunchSize]]:
    """Sizes to capture at the start, and later, in this order; each also with adapters where steps may use some."""
    first, later = decode_sizes(limits)
    later += prompt_sizes(limits)
    if not limits.adapters:
        return first, later
    return first + _adapted(first), later + _adapted(later)


def _adapted(sizes: list[LaunchSize]) -> list[LaunchSize]:
    return [replace(size, adapted=True) for size in sizes]


def graph_room(limits: StepLimits) -> int:
    """Bytes to reserve for the graphs of all sizes.

    Our kernels and products write into preallocated buffers, so a graph holds no activations. The driver's memory and
    one workspace of the matrix library remain. On an H100, 98 graphs of an 8B model take 58 to 144 MiB, and those of
    int4 weights 428 MiB with pieces (`linear.Linear`) of half of today's size: prompts then have a thousand launches.
    `Graphs` stops capturing once the room is used up.
    """
    return _WORKSPACE_BYTES + _GRAPH_BYTES * sum(map(len, graph_sizes(limits)))


class CudaCapture:
    """Captures graphs on its own stream, with one memory pool for all."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], object]) -> CudaGraph:
        """Run the work once, for lazy initialization, then record it. Raises as `Capture` does."""
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may call the device during capture.
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
        """Replay the graph on the current stream."""
        self.graph.replay()
