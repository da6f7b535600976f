"""`bench/gpu check` itself, on the CPU: it runs all it has to run, and what is wrong is called wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GPU = Path(__file__).resolve().parents[2] / "bench" / "gpu"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, str(GPU), "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.timeout(1800)
def test_all_is_well_in_the_interpreter(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = check("--interpret", "--quick", "--out", str(out))
    assert out.exists(), done.stderr
    report = json.loads(out.read_text())
    assert {row["verdict"] for row in report["kernels"]} == {"ok"}, done.stdout
    assert [row["verdict"] for row in report["engine"]] == ["ok"] * 3, done.stdout
    assert all(row["equal"] == row["tokens"] > 0 for row in report["engine"])
    assert done.returncode == 0
    assert report["interpreted"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = check()
    assert done.returncode == 1
    assert "finds no CUDA GPU" in done.stderr


@pytest.mark.timeout(1800)
def test_unknown_kernel_is_refused_with_the_known_ones() -> None:
    done = check("--interpret", "--only", "rms_nrom")
    assert done.returncode == 1
    assert "no kernel rms_nrom; there are " in done.stderr
    assert "rms_norm" in done.stderr


def test_faults_are_found() -> None:
    program = Path(__file__).with_name("faulty_cases.py")
    env = os.environ | {"PYTHONPATH": str(GPU), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.splitlines() == [
        "same: ok",
        "near: ok",
        "far: wrong",
        "nan: wrong",
        "number for nan: wrong",
        "number for -inf: wrong",
        "one of four tokens: wrong",
        "shape: failed ValueError: found the shape (3,), expected (4,)",
        "broken: failed RuntimeError: an illegal memory access was encountered",
        "after it: ok",
    ], done.stderr
