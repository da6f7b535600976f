"""`bench/gpu check` itself, on the CPU: it runs all it has to run, and what is wrong is called wrong."""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

GPU = Path(__file__).resolve().parents[2] / "bench" / "gpu"
Run = Callable[..., int]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program in this process, where everything is imported; its exit status."""
    monkeypatch.syspath_prepend(GPU)
    program = runpy.run_path(str(GPU / "__main__.py"))

    def run(**given: Any) -> int:
        usual = {"command": "check", "interpret": True, "quick": True, "part": None, "only": [], "out": None}
        status: int = program["run_check"](argparse.Namespace(**usual | given))
        return status

    return run


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_all_is_well_in_the_interpreter(check: Run, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    assert check(out=out) == 0
    report = json.loads(out.read_text())
    assert {row["verdict"] for row in report["kernels"]} == {"ok"}
    assert [row["verdict"] for row in report["engine"]] == ["ok"] * 3
    assert all(row["equal"] == row["tokens"] > 0 for row in report["engine"])
    assert report["interpreted"]


@pytest.mark.parametrize("kernel", ["attend", "rms_norm"])
def test_a_kernel_is_well_in_the_interpreter(check: Run, tmp_path: Path, kernel: str) -> None:
    out = tmp_path / "check.json"
    assert check(out=out, part="kernels", only=[kernel]) == 0
    report = json.loads(out.read_text())
    assert {(row["kernel"], row["verdict"]) for row in report["kernels"]} == {(kernel, "ok")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(check: Run) -> None:
    with pytest.raises(SystemExit, match="finds no CUDA GPU"):
        check(interpret=False)


def test_unknown_kernel_is_refused_with_the_known_ones(check: Run) -> None:
    with pytest.raises(SystemExit, match=r"no kernel rms_nrom; there are .*rms_norm"):
        check(only=["rms_nrom"])


def test_faults_are_found(check: Run, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).with_name("faulty_cases.py")))
    assert capsys.readouterr().out.splitlines() == [
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
    ]
