"""Compiles the kernels of the measured engines on all cores, before launches compile them one after the other.

Works as for the image of `octavo-server`, into the cache that the measurements read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from bench.lib.results import Row, Say, save
from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.tools.precompile import CompileJob, fill


def jobs(capability: tuple[int, int]) -> list[CompileJob]:
    """All three models in their own format, and the 8B in every format."""
    models = ("llama-3.1-8b", "qwen3-0.6b", "qwen3-14b")
    found = [CompileJob(capability, model, "auto", "auto") for model in models]
    found += [CompileJob(capability, models[0], "auto", "fp8"), CompileJob(capability, models[0], "int8", "auto")]
    return found + [CompileJob(capability, models[0], "fp8", "auto")] * (capability >= FP8_CAPABILITY)


def precompile(cache: Path, wanted: Sequence[CompileJob], out: Path, say: Say) -> bool:
    """Fill a cache; True if any job succeeded. The kernels of a failed job are compiled at their launch."""
    cache.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(wanted)), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(fill, cache, [job]): job for job in wanted}
        for done in as_completed(running):
            error, key = done.exception(), str(running[done])
            row: Row = {"key": key, "verdict": "failed" if error else "ok"}
            rows.append(row | ({"why": f"{type(error).__name__}: {error}"} if error else {"said": done.result()}))
            say(f"{key}: {row['verdict']}")
    good = any(row["verdict"] == "ok" for row in rows)
    save(out, {"rows": rows, "complete": good})
    return good
