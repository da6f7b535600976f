"""Every test runs on every variant this machine can run, and on shared objects named in OCTAVO_TEST_KERNELS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.native import require_native

from octavo_inference.backends.cpu.native import library
from octavo_inference.backends.cpu.native.library import Kernels

EXTRA = [Path(p) for p in os.environ.get("OCTAVO_TEST_KERNELS", "").split(":") if p]
BUILT = [*library.available(), *EXTRA] or ["none"]


@pytest.fixture(scope="session", params=BUILT, ids=lambda p: p.stem if isinstance(p, Path) else p)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "none":
        require_native()
    if isinstance(request.param, Path):
        return library.open_library(request.param.stem, request.param)
    return library.load(request.param)


@pytest.fixture(scope="session")
def team(kernels: Kernels) -> Iterator[int]:
    handle = kernels.library.octavo_team_create(2)
    yield handle
    kernels.library.octavo_team_destroy(handle)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
