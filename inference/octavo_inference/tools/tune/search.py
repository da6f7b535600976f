"""Search over settings by successive halving, and the final against the defaults. Pure: the caller measures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from octavo_protocol.engine_settings import SpeculationName

# A smaller gain does not justify a profile, even on a machine with little noise.
LEAST_GAIN = 0.02
FINAL_ROUNDS = 4
_FINAL_EFFORT = 2
_KEEP = 3  # one in this many advances to the next, longer trial


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """One candidate: settings that are tried together. The names are those of `EngineSettings`."""

    threads: int
    block_size: int
    speculation: SpeculationName
    max_batched_tokens: int
    max_running_requests: int

    def differences(self, other: TrialSettings) -> dict[str, int | str]:
        """The fields that differ from `other`, with the values of this candidate."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)}


@dataclass(frozen=True, slots=True)
class FinalResult:
    """Result of the final between the defaults and the best other candidate: tokens per second of each round.

    The rounds of the two alternate.
    """

    candidate: TrialSettings
    rates: tuple[float, ...]
    default_rates: tuple[float, ...]

    @property
    def gain(self) -> float:
        """Median of the per-round ratios, minus one."""
        return statistics.median(a / b for a, b in zip(self.rates, self.default_rates, strict=True)) - 1

    @property
    def noise(self) -> float:
        """Range of the defaults' own rounds, relative to their median."""
        return (max(self.default_rates) - min(self.default_rates)) / statistics.median(self.default_rates)

    @property
    def convincing(self) -> bool:
        """True if the candidate is faster in every round, and its gain exceeds the noise of the defaults."""
        every = all(a > b for a, b in zip(self.rates, self.default_rates, strict=True))
        return every and self.gain > max(LEAST_GAIN, self.noise)


def grid(default: TrialSettings, *, cores: int, concurrency: int, fixed: frozenset[str]) -> list[TrialSettings]:
    """The defaults first, then candidates that may be faster at this concurrency. `fixed` are fields not to vary.

    Those that share an engine, by their first fields, are next to each other.
    """
    wishes: dict[str, set[Any]] = {
        "threads": {cores, max(1, cores - 1), max(1, cores // 2)},
        "block_size": {2 * default.block_size},
        "speculation": {"ngram"},
        "max_batched_tokens": {default.max_batched_tokens // 2, 2 * default.max_batched_tokens},
        # More rows than concurrent requests stay empty; with fewer rows, some requests wait.
        "max_running_requests": {1 << (concurrency - 1).bit_length()},
    }
    values = [
        sorted({getattr(default, name)} if name in fixed else {getattr(default, name), *wishes[name]})
        for name in (f.name for f in fields(TrialSettings))
    ]
    found = [TrialSettings(*combination) for combination in itertools.product(*values)]
    return [default, *(c for c in found if c.max_batched_tokens >= c.max_running_requests and c != default)]


def halving(candidates: Sequence[TrialSettings], rate: Callable[[TrialSettings, int], float]) -> list[TrialSettings]:
    """Successive halving: try all, keep the best third for trials twice as long, until one is left; best first.

    `rate(candidate, effort)` returns tokens per second of a trial `effort` times as long as the shortest.
    """
    left, out, effort = list(candidates), list[TrialSettings](), 1
    while len(left) > 1:
        rates = {candidate: rate(candidate, effort) for candidate in left}
        left.sort(key=rates.__getitem__, reverse=True)
        keep = -(-len(left) // _KEEP)
        left, out, effort = left[:keep], left[keep:] + out, effort * 2
    return left + out


def final(default: TrialSettings, best: TrialSettings, rate: Callable[[TrialSettings, int], float]) -> FinalResult:
    """Measure both in alternating rounds, so that a change in the machine's speed affects both."""
    pairs = [(rate(best, _FINAL_EFFORT), rate(default, _FINAL_EFFORT)) for _ in range(FINAL_ROUNDS)]
    return FinalResult(best, tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
