"""Masks that a thread fills: a row that takes too long fails alone."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import RequestError
from octavo_inference.core.masks import GuidedRow, MaskThread
from octavo_inference.core.speculation.guidance import GuideAfter, GuideAhead


class Mask:
    """A guide whose mask is a value, once it is released."""

    def __init__(self, value: int, released: threading.Event | None = None) -> None:
        self.value = value
        self.released = released

    def fill(self, mask: Any) -> None:
        if self.released is not None:
            self.released.wait(30)
        if self.value == 0:
            raise RequestError("nothing is allowed", "grammar")
        mask[:] = self.value


class Ahead(Mask):
    """The same behind guesses: token n makes the mask n, and is not allowed if n is 0; 9 waits to be released."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__(1)
        self.waits = released

    def copy(self) -> Ahead:
        return Ahead(self.waits)

    def advance(self, token: int) -> None:
        self.value = token
        self.released = self.waits if token == 9 else None


def row(guide: Mask | GuideAfter, allowed: list[int] | None = None) -> GuidedRow:
    mask = np.array(allowed or [], np.int32)
    sequence: Any = SimpleNamespace(rules=SimpleNamespace(mask=mask), request=SimpleNamespace(request_id="r"))
    return GuidedRow(sequence, guide, 0, np.zeros(2, np.int32))  # type: ignore[arg-type]


@pytest.fixture
def thread():
    return MaskThread(time.monotonic, patience=0.2)


def test_masks_are_filled_and_combined_with_the_allowed_ids(thread):
    rows = [row(Mask(7)), row(Mask(0)), row(Mask(7), allowed=[2, 4])]
    filled = thread.finish(thread.start(rows))
    assert [each.mask.tolist() for each in (rows[0], rows[2])] == [[7, 7], [2, 4]]
    assert filled.failed == [(rows[1].sequence, "nothing is allowed")]


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_slow_row_fails_alone_and_its_mask_is_never_written(thread, slow):
    others = threading.enumerate()
    released = threading.Event()
    rows = [row(Mask(n + 1, released if n == slow else None)) for n in range(3)]
    failed = thread.finish(thread.start(rows)).failed
    assert [sequence for sequence, _ in failed] == [rows[slow].sequence]
    assert "0.2 s" in failed[0][1]
    assert [each.mask.tolist() for each in rows] == [[0, 0] if n == slow else [n + 1] * 2 for n in range(3)]
    stuck = next(each for each in threading.enumerate() if each not in others)
    released.set()
    stuck.join(10)
    assert not stuck.is_alive()
    assert rows[slow].mask.tolist() == [0, 0]
    again = [row(Mask(5))]
    assert thread.finish(thread.start(again)).failed == []
    assert again[0].mask.tolist() == [5, 5]


def test_a_job_that_is_given_up_writes_nothing(thread):
    released = threading.Event()
    rows = [row(Mask(3, released))]
    thread.abandon(thread.start(rows))
    released.set()
    again = [row(Mask(5))]
    thread.finish(thread.start(again))
    assert rows[0].mask.tolist() == [0, 0]
    assert again[0].mask.tolist() == [5, 5]


@pytest.mark.parametrize(("guesses", "known"), [([1, 2, 3], 3), ([1, 0, 3], 1), ([4, 9, 3], 1), ([9, 1, 2], 0)])
def test_a_guess_whose_mask_fails_or_takes_too_long_ends_no_request(thread, guesses, known):
    released = threading.Event()
    ahead = GuideAhead(Ahead(released), np.array(guesses, np.int32))  # type: ignore[arg-type]
    rows = [row(Mask(5)), *map(row, ahead.places), row(Mask(6))]
    filled = thread.finish(thread.start(rows))
    released.set()
    assert filled.failed == []
    assert ahead.known == known
    assert [each.mask.tolist() for each in rows[: 1 + known]] == [[value] * 2 for value in (5, *guesses[:known])]
    assert rows[-1].mask.tolist() == [6, 6], "the others have theirs"


def test_an_error_that_is_no_refusal_leaves_out_a_guess_alone(thread):
    class Broken(Ahead):
        def copy(self) -> Broken:
            return Broken(self.waits)

        def advance(self, token: int) -> None:
            raise RuntimeError("a bug")

    ahead = GuideAhead(Broken(threading.Event()), np.array([1, 2], np.int32))  # type: ignore[arg-type]
    filled = thread.finish(thread.start([row(Mask(5)), *map(row, ahead.places)]))
    assert (filled.failed, ahead.known) == ([], 0)
