"""Waiting for a condition that another task, thread or process makes true."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

# A twentieth of the time that was waited already: what comes soon is seen soon, and what takes long is left in peace.
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.25
SHARE = 0.05
# Tests run beside others on few processors: waits are as many times longer as there are processes for each of these.
MOST_PATIENT = 4.0


def eventually(question: Callable[[], T], seconds: float = 30.0) -> T:
    """Ask until the answer is true, and return it.

    Raises AssertionError after `seconds` (more on a busy machine), with the question and its last answer.
    """
    patience = _Patience(question, seconds)
    while not (answer := question()):
        time.sleep(patience.pause(answer))
    return answer


async def eventually_async(question: Callable[[], T | Awaitable[T]], seconds: float = 30.0) -> T:
    """Ask until the answer is true, and return it; other tasks run between the questions, which may be awaitable.

    Raises AssertionError after `seconds` (more on a busy machine), with the question and its last answer.
    """
    patience = _Patience(question, seconds)
    while not (answer := await _answer(question)):  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(patience.pause(answer))
    return answer


async def _answer(question: Callable[[], T | Awaitable[T]]) -> T:
    answer = question()
    if inspect.isawaitable(answer):
        return cast("T", await answer)
    return answer


def patient(seconds: float) -> float:
    """A time limit, longer on a busy machine: for what ends a test that would hang."""
    return seconds * busy()


def busy() -> float:
    """How many processes want each processor, in the last minute; between 1 and `MOST_PATIENT`."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MOST_PATIENT)


class _Patience:
    """Pauses between questions that grow with the time waited."""

    def __init__(self, question: Callable[[], object], seconds: float) -> None:
        self._question = question
        self._seconds = seconds
        self._begun = time.monotonic()

    def pause(self, answer: object) -> float:
        """Seconds to wait after this answer. Raises AssertionError when the time is up."""
        waited = time.monotonic() - self._begun
        limit = patient(self._seconds)
        if waited > limit:
            raise AssertionError(f"not within {limit:g} s: {_name(self._question)}; last answer: {answer!r}")
        return min(max(FIRST_PAUSE, SHARE * waited), LONGEST_PAUSE)


def _name(question: Callable[[], object]) -> str:
    """The question's name; for a lambda, the line where it is written."""
    code = getattr(question, "__code__", None)
    if code is None:
        return repr(question)
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    if code.co_name != "<lambda>":
        return f"{code.co_qualname} ({place})"
    return f"{linecache.getline(code.co_filename, code.co_firstlineno).strip()} ({place})"
