"""Expected times of steps, by the sequences that decode and the guessed tokens that are verified.

A step reads the weights once, so its time hardly grows with its tokens until the processor computes all the time, and
then in proportion, with jumps where a kernel begins another tile. That curve is measured before the first request
(`speculation.calibration`). Later steps correct its height: contexts grow, and other programs take their share.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

_NEWEST = 0.2
"""Weight of the newest step in a correction. Each is taken for at most twice as long as expected: outliers."""
_HOST = 1.05
"""What a step with guesses takes in addition, as long as none is measured: the host's work for them."""


@dataclass(frozen=True, slots=True)
class TokenCurve:
    """`times[i]` is the seconds of a step with `counts[i]` query tokens; both rise. `per_row` comes for each sequence.

    Between two counts the time is that of the line between them, and beyond the last that of the last line.
    """

    counts: tuple[int, ...]
    times: tuple[float, ...]
    per_row: float = 0.0

    def seconds(self, rows: int, tokens: int) -> float:
        """The time of a step with so many tokens of so many sequences."""
        if len(self.counts) == 1:
            return self.times[0] + self.per_row * rows
        above = min(max(1, bisect_left(self.counts, tokens)), len(self.counts) - 1)
        low, high = self.counts[above - 1], self.counts[above]
        fast, slow = self.times[above - 1], self.times[above]
        return fast + (slow - fast) * (tokens - low) / (high - low) + self.per_row * rows


FLAT = TokenCurve((1,), (1.0,))
"""Any number of tokens takes the same time: where nothing is measured, all guesses are tried."""


class ExpectedTimes:
    """The time of a step without prompts. `model` is the curve of the model, `draft` that of a draft model's steps."""

    def __init__(self, model: TokenCurve = FLAT, draft: TokenCurve | None = None) -> None:
        self._model = model
        self._draft = draft
        # Measured by expected time, of steps without guesses; and of those with guesses, by that.
        self._plain = 1.0
        self._guessing = _HOST

    def alone(self, rows: int) -> float:
        """The time without guesses."""
        return self._plain * self._model.seconds(rows, rows)

    def seconds(self, rows: int, drafted: int, longest: int) -> float:
        """The time with guesses, of at most `longest` tokens of a sequence, and of guessing them."""
        return self._plain * self._guessing * self._expected(rows, drafted, longest) if drafted else self.alone(rows)

    def add(self, rows: int, drafted: int, longest: int, seconds: float, steps: int = 1) -> None:
        """Note a step, or the mean of several without guesses."""
        expected = self._expected(rows, drafted, longest)
        if drafted:
            self._guessing = _moved(self._guessing, seconds / (self._plain * expected), _NEWEST)
        else:
            self._plain = _moved(self._plain, seconds / expected, 1 - (1 - _NEWEST) ** steps)
            # What was measured with guesses grows old: it has some of what is in the height of the curve now.
            self._guessing += (_HOST - self._guessing) * _NEWEST / 2

    def _expected(self, rows: int, drafted: int, longest: int) -> float:
        verified = self._model.seconds(rows, rows + drafted)
        return verified if self._draft is None else verified + longest * self._draft.seconds(rows, rows)


def _moved(mean: float, value: float, weight: float) -> float:
    """The mean with a new value, which is taken for at most twice as large, or half as large."""
    return mean + weight * (min(max(value, mean / 2), 2 * mean) - mean)
