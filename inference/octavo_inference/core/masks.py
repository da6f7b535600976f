"""Fills the masks of guided rows, in a thread or between two waits for the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Guide
from octavo_inference.core.model_input import Int32

if TYPE_CHECKING:
    from octavo_inference.core.sequence import Sequence

log = logging.getLogger(__name__)


class GuidedRow(NamedTuple):
    """A sample row whose mask has to be filled: the sequence and its state, its row in the row table, and the mask."""

    sequence: Sequence
    guide: Guide
    row: int
    mask: Int32


class Filled(NamedTuple):
    """Sequences whose masks could not be filled, each with a message, and the seconds that all took."""

    failed: list[tuple[Sequence, str]]
    seconds: float


def fill_masks(rows: Many[GuidedRow], clock: Callable[[], float]) -> Filled:
    """Fill the masks of rows. An id has to be allowed by the guidance and by the request's `allowed_token_ids`."""
    began = clock()
    failed = []
    for row in rows:
        sequence = row.sequence
        try:
            row.guide.fill(row.mask)
        except RequestError as error:
            failed.append((sequence, str(error)))
        except Exception:
            log.exception("a mask could not be computed", extra={"request_id": sequence.request.request_id})
            failed.append((sequence, "the tokens that the grammar allows could not be computed"))
        if len(sequence.rules.mask):
            np.bitwise_and(row.mask, sequence.rules.mask, out=row.mask)
    return Filled(failed, clock() - began)


class MaskThread:
    """A thread that fills masks while this one waits for the backend. Started at first use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None

    def start(self, rows: Many[GuidedRow]) -> Future[Filled]:
        """Fill masks in the thread. None of their sequences may change meanwhile."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "octavo-masks")
        return self._executor.submit(fill_masks, rows, self._clock)
