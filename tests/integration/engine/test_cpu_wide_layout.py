"""Layouts and tiles of AVX-512 and AMX, compiled for whatever machine this is: only the last instruction differs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_inference.backends.cpu.native import build

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("emulated", [("BF16_DOT", "BYTE_DOT"), ("BF16_DOT", "TILES")], ids=" and ".join)
def test_wide_layouts_give_the_same_results(emulated: tuple[str, ...]) -> None:
    native = ("-mavx2", "-mfma") if platform.machine() == "x86_64" else ()
    try:
        wide = build.compile_object(
            "octavo_wide.so",
            (*native, "-O1", "-DOCTAVO_VECTOR_FLOATS=16", *(f"-DOCTAVO_EMULATE_{name}" for name in emulated)),
        )
    except build.CompilerMissingError as error:
        pytest.skip(str(error))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/cpu", "-k", "wide"],
        cwd=ROOT,
        env=os.environ | {"OCTAVO_TEST_KERNELS": str(wide)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout
