"""Limits how many prompt tokens a step may process while sequences decode.

A step ends for all its sequences at once, so prompt tokens in it delay every decoding sequence. The engine measures the
duration of steps without prompts, and fits the extra time of steps with prompts: a fixed time, a time per prompt token,
and a time per pair of a prompt token and one before it, because attention reads those. From these follows how many
prompt tokens fit into the allowed delay. Outputs do not depend on the limit: chunked prefill may split a prompt
anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from octavo_common.least_squares import non_negative

# Decoding sequences per entering prompt at which a step takes exactly its allowed multiple. With fewer of them, or more
# prompts, a step may take proportionally longer. Total delay of the decoding sequences stays proportional to the number
# of prompts that benefit. So a burst fills an idle engine at full speed, and one prompt hardly delays many decodes.
_COMPANY = 16
# EWMA weight of the newest duration without prompts. Each is clamped to between half and twice the average, against
# outliers.
_NEWEST = 0.25
_TRUST = 2.0
# Weight of a step with prompts relative to the one after it: about the last twenty determine the fit.
_FORGET = 0.95
# Ridge of the fit towards the previous fit. Steps of one prompt are alike for a while. Costs that they do not tell
# apart keep their values, for the next prompt.
_RIDGE = 3e-3
# Of so many steps with prompts in a row, one has half the time for them. Chunks of one size would not tell fixed time
# and slope apart. Then one has none, because the decodes' own time grows with their contexts. Neither takes longer.
_EXPLORE = 16
# A chunk has at most this multiple of the largest one of late, because the fit is not known beyond. The largest one
# decays as the fit forgets.
_GROWTH = 2


def pairs(tokens: int, context: int) -> int:
    """Pairs of a prompt token and one before it, for `tokens` tokens that follow `context` others of their sequence."""
    return tokens * context + tokens * (tokens - 1) // 2


def prompt_seconds(quiet: float, fixed: float, slowdown: float, answers: int, entering: int) -> float:
    """Seconds for prompt tokens in a step in which `answers` sequences decode and `entering` ones have prompts left.

    `quiet` is the seconds of the decodes alone, `fixed` those of any prompt tokens in addition to their own time. With
    one prompt per 16 decoding sequences, the step takes `slowdown` times `quiet`. The tokens' own time is at least
    `fixed` for each entering sequence: with less of it, prompts would delay the decodes mostly by fixed times.
    """
    wait = quiet * (slowdown - 1) * max(1.0, _COMPANY * entering / answers)
    return max(fixed * max(1, entering), wait - fixed)


@dataclass(slots=True)
class PromptRoom:
    """Prompt tokens that a step may still take: at most `tokens`, whose own time is at most `seconds`.

    A token takes `per_token` seconds, and `per_pair` seconds for each token before it in its sequence.
    """

    tokens: int
    seconds: float = inf
    per_token: float = 0.0
    per_pair: float = 0.0
    least: int = 1
    """Tokens of the first chunk, at least: a prompt always makes progress."""

    def chunk(self, context: int) -> int:
        """Number of tokens that fit after `context` tokens of their sequence."""
        slope, bend = self.per_token + self.per_pair * context, self.per_pair
        # The solution of slope * n + bend / 2 * n² = seconds, in a form without cancellation.
        below = slope + sqrt(slope * slope + 2 * bend * max(0.0, self.seconds))
        fitting = 2 * max(0.0, self.seconds) / below if below > 0 else inf
        return min(self.tokens, max(self.least, int(min(fitting, self.tokens))))

    def take(self, tokens: int, context: int) -> None:
        """Subtract `tokens` tokens that follow `context` others."""
        self.tokens -= tokens
        self.seconds -= self.per_token * tokens + self.per_pair * pairs(tokens, context)
        self.least = 0


class PrefillBudget:
    """Measured step durations, and the resulting limit of prompt tokens. `slowdown` above 1: see `prompt_seconds`."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._quiet: dict[int, float] = {}
        # Decayed sums over steps with prompts, and the fit: extra seconds by (1, tokens, pairs).
        self._gram = [[0.0] * 3 for _ in range(3)]
        self._moment = [0.0] * 3
        self._fit = [0.0] * 3
        self._measured = 0
        self._largest = 0.0
        # Steps with prompts since the last one without.
        self._since_quiet = 0

    @property
    def pauses_prompts(self) -> bool:
        """True if the next step with decodes takes no prompt tokens, to measure the decodes alone."""
        return self._since_quiet >= _EXPLORE

    def observe(self, seconds: float, answers: int, prefill: int, pairs: int = 0, steps: int = 1) -> None:
        """Record `steps` consecutive steps of `seconds` with `answers` decodes and `prefill` prompt tokens each.

        `pairs`: of one of these tokens and a token before it in its sequence.
        """
        self._since_quiet = self._since_quiet + 1 if prefill else 0
        if seconds <= 0:  # too short for the clock
            return
        if prefill:
            # Until a step without prompts is measured, the decodes' part of the seconds is unknown.
            if self._quiet or not answers:
                self._learn(seconds, answers, prefill, pairs)
        elif answers:
            weight = 1.0 if steps == 1 else (1 - (1 - _NEWEST) ** steps) / _NEWEST
            known = self._quiet.get(answers, seconds)
            trusted = min(max(seconds, known / _TRUST), known * _TRUST)
            self._quiet[answers] = known + _NEWEST * weight * (trusted - known)

    def room(self, tokens: int, answers: int, entering: int) -> PromptRoom:
        """What prompts may take in the next step, at most `tokens` tokens.

        Nothing else limits them if no sequence decodes or nothing is measured yet.
        """
        if not answers:
            return PromptRoom(tokens)
        if self.pauses_prompts:
            return PromptRoom(0)
        quiet = self._decoding(answers)
        if quiet <= 0 or not self._measured:
            return PromptRoom(tokens)
        fixed, per_token, per_pair = self._fit
        seconds = prompt_seconds(quiet, fixed, self.slowdown, answers, entering)
        if self._since_quiet == _EXPLORE // 2:
            seconds /= 2
        return PromptRoom(min(tokens, max(1, round(_GROWTH * self._largest))), seconds, per_token, per_pair)

    def _learn(self, seconds: float, answers: int, prefill: int, pairs: int) -> None:
        """Fit the extra seconds of steps with prompts by decayed weighted least squares, with this step included."""
        quiet, row = self._decoding(answers), (1.0, prefill, pairs)
        expected = sum(cost * count for cost, count in zip(self._fit, row, strict=True))
        # Noise is proportional to the duration. A step that took much too long therefore has almost no weight.
        weight = max(seconds, quiet + expected) ** -2
        extra = seconds - quiet
        for i, x in enumerate(row):
            self._moment[i] = _FORGET * self._moment[i] + weight * x * extra
            for j, y in enumerate(row):
                self._gram[i][j] = _FORGET * self._gram[i][j] + weight * x * y
        prior = self._fit if self._measured else (0.0, max(0.0, extra / prefill), 0.0)
        self._fit = non_negative(tuple(map(tuple, self._gram)), tuple(self._moment), tuple(prior), _RIDGE)
        self._measured += 1
        self._largest = max(_FORGET * self._largest, prefill)

    def _decoding(self, answers: int) -> float:
        """Seconds of a step with this many decodes alone, extrapolated from the nearest measured number."""
        if not self._quiet:
            return 0.0
        if answers in self._quiet:
            return self._quiet[answers]
        nearest = min(self._quiet, key=lambda known: abs(known - answers))
        seconds = self._quiet[nearest]
        return max(seconds + (answers - nearest) * self._fit[1], seconds * min(1.0, answers / nearest))
