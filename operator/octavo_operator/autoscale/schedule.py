"""The minimum replicas at a given time: `autoscaling.minReplicas`, or more while a schedule is active. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from octavo_operator.api import cron
from octavo_operator.api.v1alpha1 import Autoscaling


@dataclass(frozen=True, slots=True)
class Floor:
    """The minimum replicas, and the field that sets them."""

    replicas: int
    field: str


def floor(scaling: Autoscaling, now: float) -> Floor:
    """The maximum of minReplicas and the active schedules' minReplicas, at Unix time `now`."""
    best = Floor(scaling.min_replicas, "minReplicas")
    for number, schedule in enumerate(scaling.schedules):
        if schedule.min_replicas > best.replicas and is_open(
            schedule.start, schedule.duration_minutes, schedule.time_zone, int(now // 60)
        ):
            best = Floor(schedule.min_replicas, f"schedules[{number}].minReplicas")
    return best


@lru_cache(maxsize=16384)
def is_open(start: str, duration: int, zone: str, minute: int) -> bool:
    """True if a time of the cron expression `start` is within `duration` minutes up to Unix minute `minute`, inclusive.

    Daylight saving time: a skipped wall-clock time counts as if clocks had not changed; of a repeated one the first
    counts.
    """
    times, clock = cron.parse(start), ZoneInfo(zone)
    day = datetime.fromtimestamp(minute * 60, clock).date() + timedelta(days=1)
    last = datetime.fromtimestamp((minute - duration) * 60, clock).date() - timedelta(days=1)
    while day >= last:
        if times.on(day) and any(minute - duration < at <= minute for at in _minutes(times, day, clock)):
            return True
        day -= timedelta(days=1)
    return False


def _minutes(times: cron.Cron, day: date, clock: ZoneInfo) -> list[int]:
    """The start times of one day, in Unix minutes."""
    return [
        int(datetime(day.year, day.month, day.day, hour, minute, tzinfo=clock).astimezone(UTC).timestamp() // 60)
        for hour in times.hours
        for minute in times.minutes
    ]
