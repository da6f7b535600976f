"""Detects whether this process can use a GPU, without importing GPU libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def gpu_visible(devices: Path = Path("/dev")) -> bool:
    """Return True if an NVIDIA GPU's device file and the libraries are present. `devices` is their folder."""
    return any(devices.glob("nvidia[0-9]*")) and not absent_libraries()


def absent_libraries() -> list[str]:
    """Packages that the CUDA backend needs and that are not installed."""
    return [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
