"""From the start of `octavo-server` to ready, from a folder of random weights, its kernels compiled before or not.

The folder was written just before: its pages are in the page cache, as they are when a pod starts again on a node.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from journal import Item, Row
from processes import group
from serving import checkpoint

from parts.setting import Setting

LIMIT, PATIENCE = 150.0, 3.0
"""Seconds to become ready, below those of the job, and to end in."""
_POLL = 0.02


def items(setting: Setting) -> Iterator[Item]:
    """Each model: its folder, a start with the cache that `ahead` filled, and one with an empty cache."""
    for model in setting.models:
        yield Item(f"{model} folder", partial(folder_of, setting, model))
        for way in ("warm", "cold"):
            yield Item(f"{model} {way}", partial(run, setting, model, way))


def folder_of(setting: Setting, model: str) -> Row:
    """Written, or there already: a row of its own, since a disk may take longer than a start may."""
    began = time.perf_counter()
    folder = checkpoint(setting, model)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"model": model, "way": "folder", "write_s": time.perf_counter() - began, "gb": size / 1e9}


def run(setting: Setting, model: str, way: str) -> Row:
    """One start; the server is ended again. `compiled`: files of kernels that it added to its cache."""
    folder = checkpoint(setting, model)
    # Warm is the cache of this program, and of `ahead`: what main set.
    kernels = Path(os.environ["TRITON_CACHE_DIR"]) if way == "warm" else setting.folder / f"octavo-kernels-{model}"
    if way == "cold":
        shutil.rmtree(kernels, ignore_errors=True)
    before = count(kernels)
    seconds, log = start(folder, kernels, setting.folder / f"octavo-start-{model}.log", tiny=setting.interpret)
    told = re.search(r"start-up: (.*)", log)
    return {
        "model": model,
        "way": way,
        "ready_s": seconds,
        "compiled": count(kernels) - before,
        "phases": told[1] if told else "",
        "log": log.splitlines()[-40:],
    }


def count(kernels: Path) -> int:
    """Compiled kernels in a cache."""
    return sum(1 for _ in kernels.rglob("*.cubin"))


def start(folder: Path, kernels: Path, log: Path, *, tiny: bool) -> tuple[float, str]:
    """Seconds to ready, and what the server said. RuntimeError when it does not become ready."""
    with socket.socket() as api, socket.socket() as admin:
        api.bind(("127.0.0.1", 0))
        admin.bind(("127.0.0.1", 0))
        ports = api.getsockname()[1], admin.getsockname()[1]
    flags = ["--model", str(folder), "--device", "cuda", "--port", str(ports[0]), "--admin-port", str(ports[1])]
    flags += ["--max-model-len", "64", "--kv-memory", "1Mi", "--max-running-requests", "4"] if tiny else []
    env = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
    begin = time.perf_counter()
    with group([sys.executable, "-m", "octavo_inference", *flags], log, PATIENCE, mode="w", env=env) as server:
        while not _answers(ports[0]):
            if (status := server.poll()) is not None:
                raise RuntimeError(f"the server ended with status {status}: {_last(log)}")
            if time.perf_counter() - begin > LIMIT:
                raise RuntimeError(f"the server is not ready after {LIMIT:.0f} s: {_last(log)}")
            time.sleep(_POLL)
        return time.perf_counter() - begin, log.read_text(encoding="utf-8")


def _last(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
            return True
    except OSError:  # nobody listens yet, or 503
        return False
