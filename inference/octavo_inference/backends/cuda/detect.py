"""Whether this process could use a GPU, without importing what uses one."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def gpu_visible(devices: Path = Path("/dev")) -> bool:
    """A device file of an NVIDIA GPU is there, and so are the libraries. `devices` is where such files are."""
    return any(devices.glob("nvidia[0-9]*")) and not absent_libraries()


def absent_libraries() -> list[str]:
    """What the CUDA backend needs and is not installed."""
    return [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
