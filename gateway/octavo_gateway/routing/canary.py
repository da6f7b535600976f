"""Splits requests between the stable and the canary track. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def split(stable: Sequence[T], canary: Sequence[T], percent: int, random: Callable[[], float]) -> Sequence[T]:
    """The pods of one track, chosen at random, so that no property of a request decides its track.

    If one track has no pod that accepts requests, the other track gets the request.
    """
    if not stable or not canary:
        return stable or canary
    return canary if random() * 100 < percent else stable
