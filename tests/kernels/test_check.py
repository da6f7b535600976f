"""`python -m bench.gpu check` itself, on the CPU: it runs all it has to run, and what is wrong is called wrong."""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.check_engine import TINY_SWAPPED, TINY_WIDE, WIDE, compare_tokens
from bench.gpu.checked_models import MODELS, QWEN2, SMOLLM2, random_weights, tiny
from bench.gpu.commands import measure
from bench.gpu.experiments.check import LOADS
from octavo_inference.backends.cuda.device import find_device

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
    kernels, engines = ([row for row in report["rows"] if row["key"].startswith("engine") is is_engine]
                        for is_engine in (False, True))  # fmt: skip
    assert {row["verdict"] for row in kernels} == {"ok"}
    assert kernels[-1]["key"] == "soak"
    assert [(row["key"], row["verdict"]) for row in engines] == [(f"engine {name}", "ok") for name in (*MODELS, *LOADS)]
    assert all(row["equal"] == row["tokens"] > 0 for row in engines)
    assert engines[-1]["swaps"] > 0
    assert report["interpreted"]


@pytest.mark.parametrize("kernel", ["attend", "rms_norm", "adapters of experts"])
def test_a_kernel_is_well_in_the_interpreter(check: Run, tmp_path: Path, kernel: str) -> None:
    assert check(part="kernels", only=[kernel]) == 0
    report = json.loads((tmp_path / "check.json").read_text())
    assert {(row["kernel"], row["verdict"]) for row in report["rows"]} == {(kernel, "ok")}


def test_sequences_return_from_the_host_while_a_step_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = replace(tiny(SMOLLM2), layers=1)
    row = compare_tokens(config, TINY_SWAPPED, torch.float32, find_device())
    assert (row["verdict"], row["equal"], row["overlap"]) == ("ok", 38, True), row
    assert row["swaps"] == row["preemptions"] == 1


def test_a_model_with_biases_answers_as_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = replace(tiny(QWEN2), layers=1)
    layer = random_weights(config).layers[0]
    assert layer.q_bias is not None
    assert layer.k_bias is not None
    row = compare_tokens(config, replace(TINY_WIDE, prompts=(3, 4), apart=1), torch.float32, find_device())
    assert (row["verdict"], row["equal"]) == ("ok", row["tokens"]), row


def test_the_wide_load_has_every_size_of_graph() -> None:
    running = [sum(out > step for out in WIDE.outputs) for step in range(max(WIDE.outputs))]
    assert {8, 16, 32, 64, 128, 256} <= set(running)


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
