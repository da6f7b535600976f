"""Tests that compute with the native CPU kernels: a tree where they are not compiled skips them."""

from __future__ import annotations

import pytest

from octavo_inference.backends.cpu.native import library

_BUILT = bool(library.available())
_HOW = "no native kernels: install g++ and run `.venv/bin/python -m octavo_inference.backends.cpu.native.build`"

needs_native = pytest.mark.skipif(not _BUILT, reason=_HOW)


def require_native() -> None:
    """Skip the test that runs, or all tests of the fixture that calls this."""
    if not _BUILT:
        pytest.skip(_HOW)
