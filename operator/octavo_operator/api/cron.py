"""Times that recur, written as crontab(5) writes them: minute, hour, day of the month, month, day of the week.

Every text that `PATTERN` admits has a meaning, so that what the API server accepts never fails later: a range that
ends before it begins goes on over the end (`FRI-MON`, `22-4`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class _Field:
    low: int
    high: int
    number: str
    names: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        value = "|".join((self.number, *self.names))
        part = rf"(\*|({value})-({value}))(/[1-9][0-9]?)?|({value})"
        return rf"({part})(,({part}))*"

    def value(self, text: str) -> int:
        return self.names.index(text) + self.low if text in self.names else int(text)

    def values(self, text: str) -> frozenset[int]:
        """The numbers that a field in this place means."""
        found: set[int] = set()
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            if span == "*":
                numbers = [*range(self.low, self.high + 1)]
            else:
                low, high = self.value(first), self.value(last or first)
                over_the_end = [*range(low, self.high + 1), *range(self.low, high + 1)]
                numbers = [*range(low, high + 1)] if low <= high else over_the_end
            found.update(numbers[:: int(step or 1)])
        return frozenset(found)


_FIELDS = (
    _Field(0, 59, "[0-5]?[0-9]"),
    _Field(0, 23, "[01]?[0-9]|2[0-3]"),
    _Field(1, 31, "0?[1-9]|[12][0-9]|3[01]"),
    _Field(1, 12, "0?[1-9]|1[0-2]", _MONTHS),
    _Field(0, 6, "0?[0-7]", _DAYS),
)
PATTERN = "^" + " ".join(f"({field.pattern})" for field in _FIELDS) + "$"


@dataclass(frozen=True, slots=True)
class Cron:
    """Minutes of the wall clock. Monday is weekday 1, Sunday 0.

    As in cron, a day must be right in the month or in the week where both are restricted, and in both otherwise.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def on(self, day: date) -> bool:
        """Whether there is a time on this day."""
        right = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return day.month in self.months and (any(right) if self.either_day else all(right))


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """The times of a text that `PATTERN` admits."""
    parts = text.split(" ")
    minutes, hours, days, months, weekdays = (field.values(part) for field, part in zip(_FIELDS, parts, strict=True))
    restricted = not parts[2].startswith("*") and not parts[4].startswith("*")
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=restricted,
    )
