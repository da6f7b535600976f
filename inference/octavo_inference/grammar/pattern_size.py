"""Bounds regular expressions by the size that they have with every counted repetition written out.

`((x{100}){100}){100}` is short, and a matcher for it takes minutes for a token, in spite of its own limits.
"""

from __future__ import annotations

import re

from octavo_inference.grammar.refusal import refusal

MAX_PATTERN_SIZE = 50_000
"""Characters and classes, with repetitions such as {2,5} written out."""

_PART = re.compile(
    r"""\\[pPx]\{[^}]*\}|\\.          # an escaped character or a class by name
      | \[\^?\]?(?:\\.|\[:|[^\]\\])*\] # a class
      | \{(?P<low>\d+)(?P<range>,(?P<high>\d*))?\}
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def pattern_size(pattern: str) -> int:
    """The size of a regular expression. An invalid one has a size, too."""
    # The sizes of the open groups, and in each that of the last part, to which a repetition applies.
    sums, last = [0], [0]
    for part in _PART.finditer(pattern):
        other = part["other"]
        if part["low"] is not None:
            # Digits beyond any limit need no arithmetic.
            times = max(int(number[:9]) for number in (part["low"], part["high"] or "1"))
            grown = last[-1] * max(1, times)
            sums[-1] += grown - last[-1]
            last[-1] = grown
        elif other == "(":
            sums.append(0)
            last.append(0)
        elif other == ")" and len(sums) > 1:
            inner = sums.pop()
            last.pop()
            sums[-1] += inner
            last[-1] = inner
        elif other is None or other not in "|*+?^$":
            sums[-1] += 1
            last[-1] = 1
    return sum(sums)


def check_pattern(pattern: str, param: str) -> None:
    """Refuse a regular expression that is too large. Raises `RequestError`."""
    size = pattern_size(pattern)
    if size > MAX_PATTERN_SIZE:
        raise refusal(
            param,
            f"the regular expression {pattern[:64]!r} has {size} parts with its repetitions written out; the limit is "
            f"{MAX_PATTERN_SIZE}. Use * or +, or smaller counts",
        )
