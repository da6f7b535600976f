"""Fills the masks of guided rows in a thread, while this one waits for the backend.

The bounds of grammars (`grammar.matcher`) do not bound every mask. So a row whose mask takes too long is given up: its
request ends, and the thread, which cannot be stopped, ends by itself once it has that mask.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from octavo_inference.common.errors import RequestError
from octavo_inference.core.model_input import Int32
from octavo_inference.core.speculation.guidance import GuideAfter

if TYPE_CHECKING:
    from octavo_inference.core.sequence import Sequence

log = logging.getLogger(__name__)

# A mask takes 20 us, and 20 ms at the bounds of grammars; on a busy machine, a thread also waits for a processor.
_PATIENCE = 0.25


class Fills(Protocol):
    """What writes the ids that may follow to a mask (`Guide.fill`)."""

    def fill(self, mask: Int32) -> None:
        """Raises `RequestError` if the state is too complex."""
        ...


class GuidedRow(NamedTuple):
    """A sample row whose mask has to be filled: the sequence and its state, and the mask with its row in the table."""

    sequence: Sequence
    guide: Fills
    row: int
    mask: Int32


class Filled(NamedTuple):
    """Sequences whose masks could not be filled, each with a message, and the seconds that the others took."""

    failed: list[tuple[Sequence, str]]
    seconds: float


class MaskJob:
    """Masks of rows on their way. An id has to be allowed by the guidance and by the request's `allowed_token_ids`.

    Masks are computed elsewhere and copied to their rows, so a job that is given up writes to no row.
    """

    def __init__(self, rows: Many[GuidedRow], clock: Callable[[], float]) -> None:
        self.rows = rows
        self.seconds = 0.0
        self.failed: list[tuple[Sequence, str]] = []
        self.is_abandoned = False
        self._clock = clock
        self._filled = 0
        self._lock = threading.Lock()
        self._done = threading.Event()

    def run(self) -> None:
        """Fill the masks, in the thread."""
        began = self._clock()
        scratch = np.empty_like(self.rows[0].mask)
        for row in self.rows:
            message = _fill(row, scratch)
            with self._lock:
                if self.is_abandoned:
                    return
                row.mask[:] = scratch
                if isinstance(row.guide, GuideAfter):
                    if message is not None:
                        row.guide.give_up()  # a guess must not end a request
                elif message is not None:
                    self.failed.append((row.sequence, message))
                self._filled += 1
        self.seconds = self._clock() - began
        self._done.set()

    def wait(self, patience: float) -> int | None:
        """Wait for all masks. Returns the number of the row that took longer than `patience` seconds, if one did.

        The job is given up then.
        """
        seen = -1
        while not self._done.wait(patience):
            if self._filled == seen:
                return self.abandon()
            seen = self._filled
        return None

    def abandon(self) -> int | None:
        """Give the job up. Returns the number of the row at hand, None if all masks are filled."""
        with self._lock:
            self.is_abandoned = True
            return self._filled if self._filled < len(self.rows) else None


class MaskThread:
    """A thread that fills masks. Started at first use, and again after it was given up."""

    def __init__(self, clock: Callable[[], float], patience: float = _PATIENCE) -> None:
        self._clock = clock
        self._patience = patience
        self._jobs: queue.SimpleQueue[MaskJob] | None = None

    def start(self, rows: Many[GuidedRow]) -> MaskJob:
        """Fill the masks of at least one row. None of their sequences may change before `finish`."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._jobs,), name="octavo-masks", daemon=True).start()
        job = MaskJob(rows, self._clock)
        self._jobs.put(job)
        return job

    def finish(self, job: MaskJob) -> Filled:
        """Wait for the masks of a job. A row that takes too long fails, and a new thread fills the rest."""
        failed = []
        while (slow := job.wait(self._patience)) is not None:
            self._jobs = None
            row, rest = job.rows[slow], job.rows[slow + 1 :]
            if isinstance(row.guide, GuideAfter):
                # The guess may be the reason. Its matcher is in use by the thread that was given up.
                row.guide.give_up()
                ahead = row.guide.ahead
                rest = [each for each in rest if not (isinstance(each.guide, GuideAfter) and each.guide.ahead is ahead)]
                failed += job.failed
                if not rest:
                    return Filled(failed, 0.0)
                job = self.start(rest)
                continue
            message = f"computing the tokens that it allows took longer than {self._patience:g} s; simplify it"
            failed += [*job.failed, (row.sequence, message)]
            rest = [each for each in rest if each.sequence is not row.sequence]
            if not rest:
                return Filled(failed, 0.0)
            job = self.start(rest)
        return Filled(failed + job.failed, job.seconds)

    def abandon(self, job: MaskJob) -> None:
        """Give up a job whose step failed."""
        if job.abandon() is not None:
            self._jobs = None


def _serve(jobs: queue.SimpleQueue[MaskJob]) -> None:
    is_current = True
    while is_current:
        job = jobs.get()
        job.run()
        is_current = not job.is_abandoned


def _fill(row: GuidedRow, mask: Int32) -> str | None:
    """Fill the mask of a row. Returns a message if that fails."""
    sequence = row.sequence
    message = None
    try:
        row.guide.fill(mask)
    except RequestError as error:
        message = str(error)
    except Exception:
        log.exception("a mask could not be computed", extra={"request_id": sequence.request.request_id})
        message = "the tokens that the grammar allows could not be computed"
    if len(sequence.rules.mask):
        np.bitwise_and(mask, sequence.rules.mask, out=mask)
    return message
