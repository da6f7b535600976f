"""From the start of `octavo-server` to ready, from a folder of random weights, its kernels compiled before or not.

The folder was written just before: its pages are in the page cache, as they are when a pod starts again on a node.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from journal import Item, Row
from serving import checkpoint

from parts.setting import Setting

LIMIT = 300.0
_POLL = 0.02


def items(setting: Setting) -> Iterator[Item]:
    """Each model with an empty cache of kernels, then with what that start left there."""
    for model in setting.models:
        for way in ("cold", "warm"):
            yield Item(f"{model} {way}", partial(run, setting, model, way))


def run(setting: Setting, model: str, way: str) -> Row:
    """One start; the server is ended again."""
    began = time.perf_counter()
    folder = checkpoint(setting, model)
    wrote, kernels = time.perf_counter() - began, setting.folder / f"octavo-kernels-{model}"
    if way == "cold":
        shutil.rmtree(kernels, ignore_errors=True)
    seconds, log = start(folder, kernels, setting.folder / f"octavo-start-{model}.log", tiny=setting.interpret)
    told = re.search(r"start-up: (.*)", log)
    return {
        "model": model,
        "way": way,
        "ready_s": seconds,
        "phases": told[1] if told else "",
        "log": log.splitlines()[-40:],
        "write_s": wrote,
    }


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
    with log.open("w", encoding="utf-8") as file:
        command = [sys.executable, "-m", "octavo_inference", *flags]
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)
        try:
            while not _answers(ports[0]):
                last = " ".join(log.read_text(encoding="utf-8").splitlines()[-3:])
                if server.poll() is not None:
                    raise RuntimeError(f"the server ended with status {server.returncode}: {last}")
                if time.perf_counter() - begin > LIMIT:
                    raise RuntimeError(f"the server is not ready after {LIMIT:.0f} s: {last}")
                time.sleep(_POLL)
            return time.perf_counter() - begin, log.read_text(encoding="utf-8")
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
            return True
    except OSError:  # nobody listens yet, or 503
        return False
