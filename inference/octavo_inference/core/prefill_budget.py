"""Limits how many prompt tokens a step may process while sequences decode.

A step ends for all its sequences at once, so prompt tokens in it delay every decoding sequence. The engine measures the
duration of steps without prompts, and fits the extra time of steps with prompts: `fixed + per_token * tokens`. From
both follows how many prompt tokens fit into the allowed delay. Outputs do not depend on the limit: chunked prefill may
split a prompt anywhere.
"""

from __future__ import annotations

from octavo_common.least_squares import non_negative

# Decoding sequences per entering prompt at which a step takes exactly its allowed multiple. With fewer of them, or more
# prompts, a step may take proportionally longer. Total delay of the decoding sequences stays proportional to the number
# of prompts that benefit. So a burst fills an idle engine at full speed, and one prompt hardly delays many decodes.
_COMPANY = 16
# Minimum number of prompt tokens in a step: a prompt always makes progress.
_LEAST = 8
# EWMA weight of the newest duration without prompts. Each is clamped to between half and twice the average, against
# outliers.
_NEWEST = 0.25
_TRUST = 2.0
# Weight of a step with prompts relative to the one after it: about the last twenty determine the fit.
_FORGET = 0.95
# Ridge of the fit. It pulls towards no fixed cost, and matters only while all chunks have had the same size.
_RIDGE = 1e-4
# One chunk in so many has half the tokens. Chunks of one size would not tell fixed cost and slope apart.
_EXPLORE = 16
# A chunk has at most this multiple of the largest one measured, because the fit is not known beyond.
_GROWTH = 2


def chunk_limit(quiet: float, fixed: float, per_token: float, slowdown: float, answers: int, entering: int) -> float:
    """Prompt tokens for a step in which `answers` sequences decode and `entering` ones have prompt tokens left.

    `quiet` is the seconds of the decodes alone; n prompt tokens take `fixed + n * per_token` seconds more, `per_token`
    above 0. With one prompt per 16 decoding sequences, the step takes `slowdown` times `quiet`. The tokens always cost
    at least `fixed` for each entering sequence: with fewer of them, prompts would delay the decodes mostly by fixed
    costs.
    """
    wait = quiet * (slowdown - 1) * max(1.0, _COMPANY * entering / answers)
    return max(_LEAST, max(fixed * max(1, entering), wait - fixed) / per_token)


class PrefillBudget:
    """Measured step durations, and the resulting prompt token limit. `slowdown` above 1: see `chunk_limit`."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._quiet: dict[int, float] = {}
        # Decayed sums over steps with prompts: of 1, tokens, tokens², extra seconds, and extra seconds times tokens.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._fixed = 0.0
        self._per_token = 0.0
        self._measured = 0
        self._largest = 0

    def observe(self, seconds: float, answers: int, prefill: int, steps: int = 1) -> None:
        """Record `steps` consecutive steps of `seconds` with `answers` decodes and `prefill` prompt tokens each."""
        if seconds <= 0:  # too short for the clock
            return
        if prefill:
            # Until a step without prompts is measured, the decodes' part of the seconds is unknown.
            if self._quiet or not answers:
                self._fit(seconds, answers, prefill)
        elif answers:
            weight = 1.0 if steps == 1 else (1 - (1 - _NEWEST) ** steps) / _NEWEST
            known = self._quiet.get(answers, seconds)
            trusted = min(max(seconds, known / _TRUST), known * _TRUST)
            self._quiet[answers] = known + _NEWEST * weight * (trusted - known)

    def limit(self, answers: int, entering: int) -> int | None:
        """Prompt tokens for the next step; None if no sequence decodes or nothing is measured yet."""
        quiet = self._decoding(answers)
        if not answers or quiet <= 0 or not self._measured:
            return None
        tokens = float(_GROWTH * self._largest)
        if self._per_token > 0:
            tokens = min(tokens, chunk_limit(quiet, self._fixed, self._per_token, self.slowdown, answers, entering))
        if self._measured % _EXPLORE == 0:
            tokens /= 2
        return max(_LEAST, round(tokens))

    def _fit(self, seconds: float, answers: int, prefill: int) -> None:
        """Fit the extra seconds of steps with prompts by decayed weighted least squares, with this step included."""
        quiet = self._decoding(answers)
        # Noise is proportional to the duration. A step that took much too long therefore has almost no weight.
        weight = max(seconds, quiet + self._fixed + self._per_token * prefill) ** -2
        extra = seconds - quiet
        row = (1.0, prefill, prefill**2, extra, extra * prefill)
        one, tokens, squares, extras, products = (
            _FORGET * known + weight * new for known, new in zip(self._sums, row, strict=True)
        )
        self._sums = one, tokens, squares, extras, products
        gram, moment = ((one, tokens), (tokens, squares)), (extras, products)
        self._fixed, self._per_token = non_negative(gram, moment, (0.0, max(0.0, products / squares)), _RIDGE)
        self._measured += 1
        self._largest = max(self._largest, prefill)

    def _decoding(self, answers: int) -> float:
        """Seconds of a step with this many decodes alone, extrapolated from the nearest measured number."""
        if not self._quiet:
            return 0.0
        if answers in self._quiet:
            return self._quiet[answers]
        nearest = min(self._quiet, key=lambda known: abs(known - answers))
        seconds = self._quiet[nearest]
        return max(seconds + (answers - nearest) * self._per_token, seconds * min(1.0, answers / nearest))
