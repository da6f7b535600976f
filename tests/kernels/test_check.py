"""`python -m bench.gpu check` itself, on the CPU: it runs all it has to run, and what is wrong is called wrong."""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.commands import measure

Run = Callable[..., int]


@pytest.fixture
def check(tmp_path: Path) -> Run:
    """The command in this process, where everything is imported; its exit status."""

    def run(**given: Any) -> int:
        usual = {"command": "check", "interpret": True, "quick": True, "part": None, "only": [], "model": []}
        usual |= {"out": tmp_path / "check.json", "seconds": 1e6, "folder": tmp_path, "tensor_parallel_size": 1}
        return measure(argparse.Namespace(**usual | given))

    return run


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_all_is_well_in_the_interpreter(check: Run, tmp_path: Path) -> None:
    assert check() == 0
    report = json.loads((tmp_path / "check.json").read_text())
    kernels, engines = ([row for row in report["rows"] if part in row] for part in ("kernel", "model"))
    assert {row["verdict"] for row in kernels} == {"ok"}
    assert [row["verdict"] for row in engines] == ["ok"] * 3
    assert all(row["equal"] == row["tokens"] > 0 for row in engines)
    assert report["interpreted"]


@pytest.mark.parametrize("kernel", ["attend", "rms_norm"])
def test_a_kernel_is_well_in_the_interpreter(check: Run, tmp_path: Path, kernel: str) -> None:
    assert check(part="kernels", only=[kernel]) == 0
    report = json.loads((tmp_path / "check.json").read_text())
    assert {(row["kernel"], row["verdict"]) for row in report["rows"]} == {(kernel, "ok")}


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
