"""Regular expressions of a quantization_config, which match names of modules.

They come from a file that may be hostile, and Python's engine backtracks: `(.+)+!` takes longer than anybody waits.
Patterns are refused by an upper bound of the steps that a name can cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from octavo_inference.common.errors import ModelError

_LONGEST = 512  # characters
_NAME = 48  # characters of a usual module's name
# Steps for a name, of all patterns: some 20 ms.
_MOST_STEPS = 3_000_000
_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?::|=|!|<=|<!|P<\w+>))?)(?!\?)|(?P<close>\))"
    r"|(?P<or>\|)|(?P<optional>\?[?+]?)|(?P<exact>\{\d+\})|(?P<repeat>(?:[*+]|\{\d*(?:,\d*)?\})[?+]?)|(?P<flags>\(\?[aimsu]+\))|(?P<other>[^(])",
    re.DOTALL,
)
_LITERALS = re.compile(r"[\w|]+")


def compiled(path: Path, key: str, texts: Iterable[str], *, anywhere: bool = False) -> list[re.Pattern[str]]:
    """The patterns of a key. `anywhere`: they are searched for, not matched from the begin of a name.

    Raises `ModelError` for texts that are no patterns, and for patterns that can take too long.
    """
    found, steps = [], 0
    for text in texts:
        if len(text) > _LONGEST:
            raise ModelError(
                f"{path}: quantization_config.{key} has a pattern of {len(text)} characters, supported are {_LONGEST}: "
                f"{text[:40]!r}…"
            )
        try:
            found.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            raise ModelError(
                f"{path}: quantization_config.{key} has {text!r}, not a regular expression: {error}"
            ) from error
        own = _steps(text, anywhere=anywhere)
        if own is None or own > _MOST_STEPS:
            raise ModelError(
                f"{path}: quantization_config.{key} has {text!r}, which can take too long to match; supported are "
                "few repeats, none inside of a group that is repeated"
            )
        steps += own
    if steps > _MOST_STEPS:
        raise ModelError(
            f"{path}: quantization_config.{key} has {len(found)} patterns that can take too long to match; supported "
            "are fewer, or ones with fewer repeats"
        )
    return found


@dataclass(slots=True)
class _Group:
    """Ways in which a group, or the whole pattern, can match; `start` is where its text begins."""

    start: int
    ways: int = 1
    before: list[int] = field(default_factory=list)  # ways of the alternatives before this one

    def closed(self, text: str) -> int:
        """The ways of all alternatives. Of different literals, those of which one begins with the other."""
        if self.before and _LITERALS.fullmatch(text):
            names = text.split("|")
            return max(sum(name.startswith(other) for other in names) for name in names)
        return sum(self.before) + self.ways


def _steps(text: str, *, anywhere: bool) -> int | None:
    """At most so many ways to match a name; None for repeats of what has several ways, and for rare syntax."""
    groups, repeats, last = [_Group(0)], int(anywhere), 1
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at, kind = token.end(), token.lastgroup
        if kind == "open":
            groups.append(_Group(at))
            last = 1
        elif kind == "close":
            group = groups.pop()
            last = group.closed(text[group.start : token.start()])
            groups[-1].ways *= last
        elif kind == "or":
            groups[-1].before.append(groups[-1].ways)
            groups[-1].ways = last = 1
        elif kind == "optional":
            groups[-1].ways *= 2  # at least the ways of the group and one more
        elif kind in {"exact", "repeat"}:
            if last > 1:
                return None
            repeats += kind == "repeat"
            # A group around it has more than one way.
            groups[-1].ways *= 1 + (kind == "repeat" and len(groups) > 1)
        else:
            last = 1
    return len(text) + groups[0].closed(text) * math.comb(_NAME + repeats, repeats)
