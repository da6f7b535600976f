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


def row(guide: Mask, allowed: list[int] | None = None) -> GuidedRow:
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
    released = threading.Event()
    rows = [row(Mask(n + 1, released if n == slow else None)) for n in range(3)]
    failed = thread.finish(thread.start(rows)).failed
    assert [sequence for sequence, _ in failed] == [rows[slow].sequence]
    assert "0.2 s" in failed[0][1]
    assert [each.mask.tolist() for each in rows] == [[0, 0] if n == slow else [n + 1] * 2 for n in range(3)]
    stuck = [each for each in threading.enumerate() if each.name == "octavo-masks"]
    released.set()
    stuck[0].join(10)
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
