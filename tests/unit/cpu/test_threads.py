"""How a team of native threads shares the pieces of a job: each once, and no wait for a thread that lost its core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from octavo_inference.backends.cpu.native import build


def test_pieces_of_a_job(tmp_path: Path) -> None:
    try:
        command = build.compiler()
    except build.CompilerMissingError as error:
        pytest.skip(str(error))
    program, source = tmp_path / "threads_check", Path(__file__).with_name("threads_check.cpp")
    flags = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-pthread", f"-I{build.HERE}")
    subprocess.run([command, *flags, "-o", str(program), str(source)], check=True)
    result = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout
