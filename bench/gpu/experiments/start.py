"""Time from the start of `octavo-server` to ready, from a folder of random weights, with and without compiled kernels.

The folder was written just before: its pages are in the page cache, as when a pod restarts on a node.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.gpu.experiments.setting import Setting
from bench.gpu.serving import checkpoint
from bench.gpu.taken import count
from bench.lib.processes import free_ports, group, wait_for
from bench.lib.results import Item, Row

LIMIT, PATIENCE = 150.0, 3.0
"""Timeouts in seconds: to become ready (less than the job's limit), and to end."""


def items(setting: Setting) -> Iterator[Item]:
    """Each model: its folder, a start with the cache that `precompile` filled, and one with an empty cache."""
    for model in setting.models:
        yield Item(f"{model} folder", partial(folder_of, setting, model))
        for way in ("warm", "cold"):
            yield Item(f"{model} {way}", partial(run, setting, model, way))


def folder_of(setting: Setting, model: str) -> Row:
    """Write the folder, unless it exists: a row of its own, since the disk may take longer than a start may."""
    began = time.perf_counter()
    folder = checkpoint(setting, model)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"model": model, "way": "folder", "write_s": time.perf_counter() - began, "gb": size / 1e9}


def run(setting: Setting, model: str, way: str) -> Row:
    """Start the server once, then stop it. `compiled`: kernel files that it added to its cache."""
    folder, log = checkpoint(setting, model), setting.folder / f"octavo-start-{model}.log"
    # The warm cache is this program's own, filled by `precompile`.
    kernels = Path(os.environ["TRITON_CACHE_DIR"]) if way == "warm" else setting.folder / f"octavo-kernels-{model}"
    if way == "cold":
        shutil.rmtree(kernels, ignore_errors=True)
    before = count(kernels)
    port, admin = free_ports(2)
    flags = ["--model", str(folder), "--device", "cuda", "--port", str(port), "--admin-port", str(admin)]
    flags += ["--max-model-len", "64", "--kv-memory", "1Mi", "--max-running-requests", "4"] * setting.interpret
    env = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
    begin = time.perf_counter()
    with group([sys.executable, "-m", "octavo_inference", *flags], log, PATIENCE, mode="w", env=env) as server:
        wait_for(f"http://127.0.0.1:{port}/readyz", server, log, LIMIT)
        seconds, lines = time.perf_counter() - begin, log.read_text(encoding="utf-8")
    phases = re.search(r"start-up: (.*)", lines)
    row: Row = {"model": model, "way": way, "ready_s": seconds, "compiled": count(kernels) - before}
    return row | {"phases": phases[1] if phases else "", "log": lines.splitlines()[-40:]}
