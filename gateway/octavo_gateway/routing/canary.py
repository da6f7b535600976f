"""Which track of a canary a request goes to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def split(stable: Sequence[T], canary: Sequence[T], percent: int, random: Callable[[], float]) -> Sequence[T]:
    """The track of one request: by chance, so that nothing about a request decides which one answers it.

    A track without a pod that takes requests leaves them to the other.
    """
    if not stable or not canary:
        return stable or canary
    return canary if random() * 100 < percent else stable
