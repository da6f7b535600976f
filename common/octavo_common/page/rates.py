"""Rates of the last seconds from the counters of load reports. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from octavo_protocol.load import LoadReport

_SECONDS = 10.0
"""Reports within this time of the last one count."""


class Rates(NamedTuple):
    """Generated tokens per second, and the share of prompt tokens that the prefix cache had; None without prompts."""

    tokens: float
    hits: float | None


class _Sample(NamedTuple):
    at: float
    generated: int
    prompt: int
    hit: int


class RecentRates:
    """The reports of one replica in the last seconds."""

    def __init__(self) -> None:
        self._start_time: float | None = None
        self._samples: deque[_Sample] = deque()

    def add(self, report: LoadReport, at: float) -> None:
        """Note a report that was taken at a time; one that is known already changes nothing."""
        if report.start_time != self._start_time:
            self._samples.clear()  # its counters restarted
            self._start_time = report.start_time
        if self._samples and at <= self._samples[-1].at:
            return
        self._samples.append(_Sample(at, report.generation_tokens, report.prompt_tokens, report.prefix_hit_tokens))
        while at - self._samples[0].at > _SECONDS:
            self._samples.popleft()

    def counted(self) -> tuple[float, int, int, int] | None:
        """Seconds, and the tokens generated, of prompts and found in the cache meanwhile; None for fewer than two."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        return last.at - first.at, last.generated - first.generated, last.prompt - first.prompt, last.hit - first.hit


def rates(replicas: list[RecentRates]) -> Rates | None:
    """The rates of all replicas of a model together; None before they are known."""
    found = [counted for each in replicas if (counted := each.counted()) is not None]
    if not found:
        return None
    prompt, hit = (sum(counted[place] for counted in found) for place in (2, 3))
    return Rates(
        sum(generated / seconds for seconds, generated, _, _ in found), min(1.0, hit / prompt) if prompt else None
    )


def rounded(found: Rates | None) -> tuple[int | None, float | None]:
    """As the page shows them: coarse, because they tell of all clients."""
    if found is None:
        return None, None
    return round(found.tokens), None if found.hits is None else round(found.hits, 2)
