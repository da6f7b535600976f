"""Waiting for a condition that another task, thread or process makes true."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1


def eventually(question: Callable[[], T], seconds: float = 30.0) -> T:
    """Ask until the answer is true, and return it.

    Raises AssertionError after `seconds`, with the question and its last answer.
    """
    patience = _Patience(question, seconds)
    while not (answer := question()):
        time.sleep(patience.pause(answer))
    return answer


async def eventually_async(question: Callable[[], T | Awaitable[T]], seconds: float = 30.0) -> T:
    """Ask until the answer is true, and return it; other tasks run between the questions, which may be awaitable.

    Raises AssertionError after `seconds`, with the question and its last answer.
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


class _Patience:
    """Pauses between questions: short at first, for tests on one machine, then long, to leave the machine alone."""

    def __init__(self, question: Callable[[], object], seconds: float) -> None:
        self._question = question
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._pause = FIRST_PAUSE

    def pause(self, answer: object) -> float:
        """Seconds to wait after this answer. Raises AssertionError when the time is up."""
        if time.monotonic() > self._end:
            raise AssertionError(f"not within {self._seconds:g} s: {_name(self._question)}; last answer: {answer!r}")
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


def _name(question: Callable[[], object]) -> str:
    """The question's name; for a lambda, the line where it is written."""
    code = getattr(question, "__code__", None)
    if code is None:
        return repr(question)
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    if code.co_name != "<lambda>":
        return f"{code.co_qualname} ({place})"
    return f"{linecache.getline(code.co_filename, code.co_firstlineno).strip()} ({place})"
