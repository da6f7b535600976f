"""Compile what the engines of the measurements need, on all cores, before they need it one kernel after the other.

The same as the image `octavo-server` is built with, into the cache that the measurements read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from files import read, save

from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.tools.precompile import CompileJob, fill

Capability = tuple[int, int]


def jobs(capability: Capability) -> list[CompileJob]:
    """All three models as they are, and the 8B in every format."""
    models = ("llama-3.1-8b", "qwen3-0.6b", "qwen3-14b")
    found = [CompileJob(capability, model, "auto", "auto") for model in models]
    found += [CompileJob(capability, models[0], "auto", "fp8"), CompileJob(capability, models[0], "int8", "auto")]
    return found + [CompileJob(capability, models[0], "fp8", "auto")] * (capability >= FP8_CAPABILITY)


def compile_ahead(cache: Path, wanted: Sequence[CompileJob], out: Path, say: Callable[[str], None]) -> bool:
    """Fill a cache. Whether anything was done: what fails is told, and its kernels are compiled when they are launched.

    An earlier call's jobs come again, which takes seconds: nobody knows whether its cache is still there.
    """
    began, cores = time.monotonic(), len(os.sched_getaffinity(0))
    rows = {row["key"]: row for row in (read(out) or {}).get("rows", [])}
    cache.mkdir(parents=True, exist_ok=True)

    def keep(*, complete: bool) -> None:
        seconds = round(time.monotonic() - began, 1)
        save(out, {"rows": list(rows.values()), "seconds": seconds, "complete": complete})

    with ProcessPoolExecutor(min(cores, len(wanted)), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(fill, cache, [job]): job for job in wanted}
        for done in as_completed(running):
            error, key = done.exception(), str(running[done])
            row = {"key": key, "verdict": "failed" if error else "ok"}
            rows[key] = row | ({"why": f"{type(error).__name__}: {error}"} if error else {"said": done.result()})
            keep(complete=False)
            say(f"{key}: {row['verdict']}")
    good = any(row["verdict"] == "ok" for row in rows.values())
    keep(complete=good)
    return good
