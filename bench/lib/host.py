"""Describes this machine, and creates the head of a result file."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def host() -> dict[str, Any]:
    """Processor, cores this process may use, instruction sets of interest, versions."""
    info = Path("/proc/cpuinfo").read_text()
    flags = info.partition("flags")[2].partition("\n")[0].split()
    return {
        "machine": platform.machine(),
        "processor": info.partition("model name")[2].partition("\n")[0].lstrip("\t :"),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in flags],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def available_memory() -> int:
    """Bytes that can be allocated without swapping."""
    return 1024 * int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0])


def new_report(**more: Any) -> dict[str, Any]:
    """Head of a result file: date, machine, and further fields."""
    return {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "host": host(), **more}


def result_file(name: str) -> Path:
    """bench/results/NAME-DATE.json."""
    return RESULTS / f"{name}-{time.strftime('%Y-%m-%d-%H%M')}.json"
