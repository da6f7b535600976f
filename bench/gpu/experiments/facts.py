"""The machine: versions, driver, tools, processors and room. The first row of a first run on a card."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from bench.gpu.experiments.setting import Setting
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.aot.kernel_cache import watched
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, normalize

PACKAGES = ("torch", "triton", "numpy", "msgspec", "tokenizers", "starlette", "uvicorn", "vllm")
TOOLS = ("nvidia-smi", "gcc", "ncu", "compute-sanitizer", "cuobjdump", "nvcc")
_ASKED = "name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,power.limit,mig.mode.current"


def items(setting: Setting) -> Iterator[Item]:
    """What is installed, the card, and the first launch, with the kernel compiled or found."""
    yield Item("machine", machine)
    yield Item("card", card)
    yield Item("first launch", lambda: launch(setting))


def machine() -> Row:
    """Versions and paths."""
    row: Row = {"packages": {name: _version(name) for name in PACKAGES}, "tools": {t: shutil.which(t) for t in TOOLS}}
    row["python_h"] = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    row |= {"cores": len(os.sched_getaffinity(0)), "memory_gib": pages / 2**30}
    return row | {"disk_gib": shutil.disk_usage(Path.cwd()).free / 2**30, "path": os.environ.get("PATH", "")}


def card() -> Row:
    """What the driver reports; nothing is changed."""
    if shutil.which("nvidia-smi") is None:
        return {"verdict": "refused", "why": "nvidia-smi is not on PATH"}
    command = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"nvidia_smi": found.stdout.strip() or found.stderr.strip()}


def launch(setting: Setting) -> Row:
    """One kernel through our own way to the device. `compiled` is 0 where it was taken along."""
    device = find_device()
    x, weight = setting.place.randn(4, 1024), setting.place.weight(1024)
    out = setting.place.empty(4, 1024)
    with watched() as use:
        normalize(x.float(), DeviceNorm(weight), 1e-6, out)
        setting.timer.wait()
    good = bool(out.isfinite().all())
    row: Row = {"device": device.name, "compiled": use.compiled, "ready": use.ready, "compile_s": use.seconds}
    return row | {"verdict": "ok" if good else "wrong"}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
