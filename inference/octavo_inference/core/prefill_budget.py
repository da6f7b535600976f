"""Limits how many prompt tokens a step may process while sequences decode.

A step ends for all its sequences at once, so prompt tokens in it delay every decoding sequence. The engine measures the
cost of a prompt token and the duration of a step without prompts. From both follows how many prompt tokens fit into the
allowed delay. Outputs do not depend on the limit: chunked prefill may split a prompt anywhere.
"""

from __future__ import annotations

# Decoding sequences per entering prompt at which a step takes exactly its allowed multiple. With fewer of them, or more
# prompts, a step may take proportionally longer. Total delay of the decoding sequences stays proportional to the number
# of prompts that benefit. So a burst fills an idle engine at full speed, and one prompt hardly delays many decodes.
_COMPANY = 16
# Minimum number of prompt tokens in a step: a prompt always makes progress.
_LEAST = 8
# EWMA weight of the newest measurement. Each one is clamped to between half and twice the average, against outliers.
_NEWEST = 0.25
_TRUST = 2.0


def chunk_limit(quiet: float, per_token: float, slowdown: float, answers: int, entering: int) -> int:
    """Prompt tokens for a step in which `answers` sequences decode and `entering` ones have prompt tokens left.

    `quiet` is the seconds of the decodes alone, `per_token` the seconds per additional prompt token. With one prompt
    per 16 decoding sequences, the step takes `slowdown` times `quiet`.
    """
    wait = quiet * (slowdown - 1) * max(1.0, _COMPANY * entering / answers)
    return max(_LEAST, int(wait / per_token))


class PrefillBudget:
    """EWMAs of recent step durations, and the resulting prompt token limit. `slowdown` above 1: see `chunk_limit`."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._quiet: dict[int, float] = {}
        self._per_token = 0.0

    def observe(self, seconds: float, answers: int, prefill: int, steps: int = 1) -> None:
        """Record `steps` consecutive steps of `seconds` with `answers` decodes and `prefill` prompt tokens each."""
        if prefill:
            # A step with a smaller share of prompt tokens gives a less precise estimate of their cost.
            measured, weight = (seconds - self._decoding(answers)) / prefill, prefill / (prefill + answers)
            self._per_token = _blend(self._per_token, measured, weight)
        elif answers:
            weight = 1.0 if steps == 1 else (1 - (1 - _NEWEST) ** steps) / _NEWEST
            self._quiet[answers] = _blend(self._quiet.get(answers, 0.0), seconds, weight)

    def limit(self, answers: int, entering: int) -> int | None:
        """Prompt tokens for the next step; None if no sequence decodes or nothing is measured yet."""
        quiet = self._decoding(answers)
        if quiet <= 0 or self._per_token <= 0:
            return None
        return chunk_limit(quiet, self._per_token, self.slowdown, answers, entering)

    def _decoding(self, answers: int) -> float:
        """Seconds of a step with this many decodes alone, extrapolated from the nearest measured number."""
        if not answers or not self._quiet:
            return 0.0
        if answers in self._quiet:
            return self._quiet[answers]
        nearest = min(self._quiet, key=lambda known: abs(known - answers))
        seconds = self._quiet[nearest]
        return max(seconds + (answers - nearest) * self._per_token, seconds * min(1.0, answers / nearest))


def _blend(known: float, measured: float, weight: float) -> float:
    """Move `known` towards `measured`. The first measurement is taken as it is."""
    if known <= 0:
        return max(0.0, measured)
    trusted = min(max(measured, known / _TRUST), known * _TRUST)
    return known + _NEWEST * weight * (trusted - known)
