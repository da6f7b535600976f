"""Progress over layers: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from tqdm import tqdm

T = TypeVar("T")
_BETWEEN_LINES = 5.0  # seconds


def progress(
    items: Iterable[T],
    what: str,
    total: int,
    out: TextIO,
    *,
    done: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """The items, while `out` shows how many of `total` are done, seconds for each, and the time left.

    `done`: those that an earlier run did.
    """
    if out.isatty():
        yield from tqdm(items, desc=what, total=total, initial=done, unit="layer", file=out)
        return
    start = last = clock()
    for number, item in enumerate(items, done + 1):
        yield item
        now = clock()
        if number == total or now - last >= _BETWEEN_LINES:
            each = (now - start) / (number - done)
            out.write(f"{what}: layer {number} of {total}, {each:.1f} s each, {each * (total - number):.0f} s left\n")
            out.flush()
            last = now
