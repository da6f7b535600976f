"""After `warm_up` no batch makes Triton compile: a request would wait seconds for that, and all others with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param("auto auto", marks=pytest.mark.full),
        pytest.param("fp8 fp8 qwen qwen:4", marks=pytest.mark.full),
        pytest.param("auto nvfp4 llama", marks=pytest.mark.full),
        pytest.param("auto fp8-blocks llama", marks=pytest.mark.full),
        pytest.param("auto auto granite qwen-next lfm2", marks=pytest.mark.full),
        pytest.param("auto auto experts deepseek", marks=pytest.mark.full),
        pytest.param("auto auto command-r olmo bloom llama-4 command-r:2", marks=pytest.mark.full),
        "auto mxfp4 experts",
        "int8 gguf llama",  # all products by our kernels, where dense ones are the library's
    ],
    ids=lambda given: given.replace(" ", "-"),
)
def test_warm_up_compiles_all(given: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-m", "tests.kernels.variants", *given.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(line.endswith(" variants in warm_up, 0 after it") for line in lines)
