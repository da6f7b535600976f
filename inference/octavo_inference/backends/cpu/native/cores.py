"""Cores that this process may use: how many, and on how many NUMA nodes."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores of the affinity mask, or fewer when a cgroup quota (a container's CPU limit) is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_v2(cgroup / "cpu.max") or _quota_v1(cgroup / "cpu")
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def numa_nodes(folder: Path = Path("/sys/devices/system/node")) -> int:
    """Number of NUMA nodes that have a core of the affinity mask; 1 where the system does not say."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        nodes = [_cores(path.read_text(encoding="ascii")) for path in folder.glob("node[0-9]*/cpulist")]
    except (OSError, ValueError):
        return 1
    return max(1, sum(not mine.isdisjoint(cores) for cores in nodes))


def _cores(cpulist: str) -> set[int]:
    """The cores of a list such as `0-3,8`."""
    ends = [[int(end) for end in part.split("-")] for part in cpulist.strip().split(",") if part]
    return {core for first, *last in ends for core in range(first, (last or [first])[0] + 1)}


def _quota_v2(path: Path) -> float | None:
    try:
        quota, period = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota, period = (int((folder / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
