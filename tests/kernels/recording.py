"""A capture without a GPU: notes what is launched, with the very tensors it was given, and launches that again.

It is strict where a GPU is: nothing runs while it is recorded, a tensor that is made meanwhile is an error, and numbers
of the host stay what they were. So what a step takes from anywhere but its buffers shows as a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

Launch = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Launches in order."""

    launches: list[Launch]
    bytes: int = 0

    def replay(self) -> None:
        for launch in self.launches:
            launch()


def record(work: Callable[[], object]) -> Recorded:
    """A `graphs.Capture`. RuntimeError for what a CUDA graph could not hold."""
    launches: list[Launch] = []
    with _kernels(launches), _Operations(launches):
        work()
    return Recorded(launches)


@contextmanager
def _kernels(launches: list[Launch]) -> Iterator[None]:
    run = GridExecutor.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            GridExecutor,
            "__call__",
            lambda kernel, *args, **named: launches.append(partial(run, kernel, *args, **named)),
        )
        yield


class _Operations(TorchDispatchMode):
    """torch's own: views are made at once, as they launch nothing; others must say where they write."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace == "c10d":
            # Ranks capture together. What a collective gives is waited for, so it runs now as well, over nobody's data.
            def again() -> None:
                func(*args, **named)[-1].wait()

            self._launches.append(again)
            return func(*args, **named)
        aliases = [result.alias_info for result in func._schema.returns]
        if aliases and all(alias is not None and not alias.is_write for alias in aliases):
            return func(*args, **named)
        if not aliases or any(alias is None for alias in aliases):
            raise RuntimeError(f"{func} makes a tensor or reads one while a graph is captured")
        self._launches.append(partial(func, *args, **named))
        return named.get("out", args[0])
