"""A step's launches as a list: recorded once, then launched again with the same arguments.

This is what a CUDA graph is to the GPU, for the host: Triton binds, specializes and looks up a kernel in 20 to 40
microseconds, and torch makes a view in one or two, for values that are the same in every step of a size. As with a
graph, what changes between steps is in buffers at fixed addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.compiler import CompiledKernel
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from octavo_inference.backends.cuda.inputs import LaunchSize

Launch = Callable[[], object]

_recording = threading.Lock()


@dataclass(frozen=True, slots=True)
class LaunchList:
    """Launches in order: a `graphs.Graph` that takes no memory of the device."""

    launches: list[Launch]
    bytes: int = 0

    def replay(self) -> None:
        """Launch everything again, over the current contents of the same memory."""
        for launch in self.launches:
            launch()


class LaunchLists:
    """The lists of the `most` sizes that were launched last, each recorded by `record` at its first launch."""

    def __init__(self, record: Callable[[LaunchSize], LaunchList], most: int = 128) -> None:
        self._record = record
        self._most = most
        self._lists: dict[LaunchSize, LaunchList] = {}

    def run(self, size: LaunchSize) -> None:
        """Launch a step of a size, whose inputs are on their way to the device."""
        found = self._lists.pop(size, None) or self._record(size)
        self._lists[size] = found  # behind the others: the first one is the one that was used longest ago
        if len(self._lists) > self._most:
            del self._lists[next(iter(self._lists))]
        found.replay()


def record(work: Callable[[], object]) -> LaunchList:
    """List what `work` launches; nothing runs but collectives. A `graphs.Capture`.

    Numbers of the host stay what they were, and so do addresses. RuntimeError for operations that a graph could not
    hold either: one that makes a tensor, or reads one.
    """
    launches: list[Launch] = []
    # In inference mode torch does not reduce its operations to basic ones before it asks.
    with torch.inference_mode(False), torch.no_grad(), _kernels(launches), _Operations(launches):
        work()
    return LaunchList(launches)


@contextmanager
def _kernels(launches: list[Launch]) -> Generator[None]:
    """List this thread's kernels; those of other threads run.

    Triton has hooks before a launch, but none in its place: `run` of kernels is replaced meanwhile, for all threads. So
    only one records at a time.
    """
    recorder = threading.get_ident()

    def run_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            if warmup or threading.get_ident() != recorder:
                return original(kernel, *args, grid=grid, warmup=warmup, **named)
            compiled = original(kernel, *args, grid=grid, warmup=True, **named)
            launches.append(_bound(compiled, kernel, grid, args, named))
            return compiled

        return run

    with _recording:
        originals = [(kind, kind.run) for kind in (JITFunction, InterpretedFunction)]
        for kind, original in originals:
            kind.run = run_of(original)
        try:
            yield
        finally:
            for kind, original in originals:
                kind.run = original


def _bound(
    compiled: object, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]
) -> Launch:
    """A launch without Triton's own work. The interpreter compiles nothing, and interprets each launch anew."""
    if not isinstance(compiled, CompiledKernel):
        return partial(kernel[grid], *args, **named)
    rest = (named[name] for name in kernel.arg_names[len(args) :])
    return partial(compiled[(*grid, 1, 1)[:3]], *args, *rest)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """List torch's operations: views are made at once, as they launch nothing; others must say where they write."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace == "c10d":
            # All ranks record together. The result of a collective is waited for, so it runs now as well, over memory
            # that is nobody's.
            def again() -> None:
                func(*args, **named)[-1].wait()

            self._launches.append(again)
            return func(*args, **named)
        aliases = [result.alias_info for result in func._schema.returns]  # noqa: SLF001  torch has no other way to ask
        if aliases and all(alias is not None and not alias.is_write for alias in aliases):
            return func(*args, **named)
        if not aliases or any(alias is None for alias in aliases):
            raise RuntimeError(f"{func} makes a tensor or reads one while launches are recorded")
        self._launches.append(partial(func, *args, **named))
        return named.get("out", args[0])
