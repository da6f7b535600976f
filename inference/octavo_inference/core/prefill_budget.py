"""How many prompt tokens may share a step with running answers.

A step ends for all its sequences at once, so the prompt tokens in it make every running answer wait. What a prompt
token costs and how long a step without any takes is measured as the steps go; from that follows how many fit into the
wait that is allowed. Outputs do not depend on it: chunks may be cut anywhere.
"""

from __future__ import annotations

# Answers per entering prompt at which a step takes exactly its allowed multiple. Fewer answers, or more prompts, and it
# may take proportionally longer: the wait times those who have it stays in proportion to those who gain from it. So a
# burst fills an idle engine at full speed and one prompt hardly disturbs many answers.
_COMPANY = 16
# Prompt tokens a step takes in any case: a prompt always gets on.
_LEAST = 8
# Weight of the newest measurement; one alone counts as at most twice or half of what is known (a machine has hiccups).
_NEWEST = 0.25
_TRUST = 2.0


def chunk_limit(quiet: float, per_token: float, slowdown: float, answers: int, entering: int) -> int:
    """Prompt tokens for a step in which `answers` sequences decode and `entering` ones have prompt left.

    `quiet` seconds for the decodes alone, `per_token` seconds for a prompt token more; with one prompt per 16 answers
    the step is to take `slowdown` times `quiet`.
    """
    wait = quiet * (slowdown - 1) * max(1.0, _COMPANY * entering / answers)
    return max(_LEAST, int(wait / per_token))


class PrefillBudget:
    """What steps took lately, and the limit that follows. `slowdown` above 1: as for `chunk_limit`."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._quiet: dict[int, float] = {}
        self._per_token = 0.0

    def observe(self, seconds: float, answers: int, prefill: int, steps: int = 1) -> None:
        """A step with `answers` decodes and `prefill` prompt tokens took `seconds`; `steps`: so many in a row did."""
        if prefill:
            # The fewer prompt tokens among the others, the less the step says of their cost.
            measured, weight = (seconds - self._decoding(answers)) / prefill, prefill / (prefill + answers)
            self._per_token = _blend(self._per_token, measured, weight)
        elif answers:
            weight = 1.0 if steps == 1 else (1 - (1 - _NEWEST) ** steps) / _NEWEST
            self._quiet[answers] = _blend(self._quiet.get(answers, 0.0), seconds, weight)

    def limit(self, answers: int, entering: int) -> int | None:
        """Prompt tokens for the next step; None while there is nobody to disturb, or nothing measured."""
        quiet = self._decoding(answers)
        if quiet <= 0 or self._per_token <= 0:
            return None
        return chunk_limit(quiet, self._per_token, self.slowdown, answers, entering)

    def _decoding(self, answers: int) -> float:
        """Seconds of a step of so many decodes alone: the nearest number measured, and what the others compute."""
        if not answers or not self._quiet:
            return 0.0
        if answers in self._quiet:
            return self._quiet[answers]
        nearest = min(self._quiet, key=lambda known: abs(known - answers))
        seconds = self._quiet[nearest]
        return max(seconds + (answers - nearest) * self._per_token, seconds * min(1.0, answers / nearest))


def _blend(known: float, measured: float, weight: float) -> float:
    """`known` moved towards `measured`; the first measurement is all that is known."""
    if known <= 0:
        return max(0.0, measured)
    trusted = min(max(measured, known / _TRUST), known * _TRUST)
    return known + _NEWEST * weight * (trusted - known)
