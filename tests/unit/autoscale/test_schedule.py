"""Schedules: what a crontab line means, when a window is open, and what clocks that change do to it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_operator.api import cron
from octavo_operator.api.v1alpha1 import Autoscaling
from octavo_operator.autoscale.schedule import Floor, floor, is_open

LINES = st.from_regex(re.compile(cron.PATTERN), fullmatch=True).filter(lambda line: len(line) <= 100)


def minute(text, zone="UTC"):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() // 60)


def opens(line, zone, start, end):
    """The wall-clock times from `start` to `end` (UTC days) at which a window of one minute is open."""
    first, last = minute(start), minute(end)
    return [
        datetime.fromtimestamp(at * 60, ZoneInfo(zone)).strftime("%d %H:%M")
        for at in range(first, last)
        if is_open(line, 1, zone, at)
    ]


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("0 8 * * *", ["06 08:00", "07 08:00", "08 08:00", "09 08:00"]),
        ("30 8,20 7 * *", ["07 08:30", "07 20:30"]),
        ("0 0 * * MON-TUE", ["09 00:00"]),
        ("0 0 * * SAT-MON", ["07 00:00", "08 00:00", "09 00:00"]),
        ("0 0 * * 7", ["08 00:00"]),
        ("0 */12 8 3 *", ["08 00:00", "08 12:00"]),
        ("0 22-1/3 8 MAR *", ["08 01:00", "08 22:00"]),
        ("0 0 7 * MON", ["07 00:00", "09 00:00"]),  # either day
        ("0 0 */31 * 0", []),  # both: the first of the month is no Sunday
        ("0 0 30 2 *", []),
    ],
)
def test_lines_mean_what_they_mean_in_cron(line, times):
    assert re.match(cron.PATTERN, line)
    assert opens(line, "UTC", "2026-03-06", "2026-03-10") == times


@pytest.mark.parametrize("line", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
                                  "*/0 * * * *", "5/2 * * * *", "* * * * mon", "@daily", "0 8 * * *\n"])  # fmt: skip
def test_what_is_no_line_is_not_admitted(line):
    assert not re.fullmatch(cron.PATTERN, line)


@given(LINES)
@examples(max_examples=scaled(20))
def test_every_line_that_is_admitted_has_a_meaning(line):
    found = cron.parse(line)
    assert found.minutes
    assert found.hours
    assert set(found.minutes) <= set(range(60))
    assert set(found.hours) <= set(range(24))
    assert found.days <= set(range(1, 32))
    assert found.months <= set(range(1, 13))
    assert found.weekdays <= set(range(7))


@given(LINES, st.integers(0, 40 * 365 * 1440), st.integers(1, 2000))
@examples(max_examples=scaled(25))
def test_a_window_is_open_when_a_start_lies_in_it(line, now, duration):
    times = cron.parse(line)

    def starts(at):
        time = datetime.fromtimestamp(at * 60, UTC)
        return time.minute in times.minutes and time.hour in times.hours and times.on(time.date())

    assert is_open(line, duration, "UTC", now) == any(starts(at) for at in range(now - duration + 1, now + 1))


def test_windows_follow_the_clock_of_their_zone():
    assert opens("0 8 * * *", "America/New_York", "2026-03-06", "2026-03-10") == [
        "06 08:00", "07 08:00", "08 08:00", "09 08:00"]  # fmt: skip
    assert is_open("0 8 * * *", 60, "America/New_York", minute("2026-03-08T08:59", "America/New_York"))
    assert not is_open("0 8 * * *", 60, "America/New_York", minute("2026-03-08T09:00", "America/New_York"))


def test_a_time_that_the_clock_skips_comes_an_hour_later():
    assert opens("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-30T12:00") == ["29 03:30", "30 02:30"]


def test_a_time_that_comes_twice_counts_once():
    assert opens("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-26T12:00") == ["25 02:30", "26 02:30"]
    after = minute("2026-10-25T00:30") + 70  # 02:40 for the second time, 70 minutes after the first 02:30
    assert not is_open("30 2 * * *", 60, "Europe/Berlin", after)
    assert is_open("30 2 * * *", 120, "Europe/Berlin", after)


def test_the_largest_open_schedule_is_the_floor():
    day = {"start": "0 8 * * *", "durationMinutes": 600, "minReplicas": 2}
    rush = {"start": "0 9 * * *", "durationMinutes": 60, "minReplicas": 5}
    scaling = Autoscaling.model_validate(
        {"mode": "Builtin", "minReplicas": 1, "maxReplicas": 9, "schedules": [day, rush]}
    )
    at = datetime(2026, 3, 6, tzinfo=UTC)
    for hours, found in (
        (7.9, Floor(1, "minReplicas")),
        (8.0, Floor(2, "schedules[0].minReplicas")),
        (9.5, Floor(5, "schedules[1].minReplicas")),
        (10.0, Floor(2, "schedules[0].minReplicas")),
        (18.0, Floor(1, "minReplicas")),
    ):
        assert floor(scaling, (at + timedelta(hours=hours)).timestamp()) == found, hours
