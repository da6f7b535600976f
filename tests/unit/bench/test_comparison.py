"""What `python -m bench.cpu` runs and how its table names floors, bandwidths and systems that are left out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cpu import __main__ as program
from bench.cpu.experiments import Experiment, Line, by_variant, experiments
from bench.cpu.floors import floor, limits
from bench.cpu.report import bandwidths, results, table
from bench.cpu.runner import Runners
from bench.cpu.systems import System, systems
from bench.lib.loads import load

ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")
MODEL = {"linear_parameters": 10**9, "head_parameters": 10**8, "weight_bytes": 10**9}
LIMIT = {"read_gb_per_s": 40.0, "fp32_gflops": 200.0, "bf16_gflops": 400.0, "int8_gops": 800.0}
AGAINST = Line("one", "octavo-4bit-1b", ("llama",), must=1.3)
SINGLE = Experiment("single-1b", "load stream-64", ("octavo-4bit-1b", "llama"), (AGAINST,), 1, model="1b")


def given(*only: str, variants: bool = False, listed: bool = False) -> argparse.Namespace:
    return argparse.Namespace(only=list(only), variants=variants, list=listed)


def record(system: str, seconds: float, **more: object) -> dict[str, object]:
    return {"experiment": "single-1b", "round": 1, "system": system, "tokens": 64, "seconds": seconds, **more}


def limited(experiment: str = "limits-1b") -> dict[str, object]:
    return {"experiment": experiment, "round": 1, "system": "roofline", **LIMIT}


def test_by_default_only_the_built_in_model_runs_and_patterns_name_the_others() -> None:
    everything = experiments(ISA)
    assert {e.model for e in program.choose(everything, given())} == {""}
    chosen = [e.name for e in program.choose(everything, given("*-4b"))]
    assert sorted(chosen) == ["limits-4b", "mix-16-4b", "prefill-4b", "single-4b"]
    assert [e.name for e in program.choose(everything, given("single"))] == ["roofline", "single"]
    both = [e.name for e in program.choose(everything, given("single-4b", "single-1b"))]
    assert both == ["limits-1b", "single-1b", "limits-4b", "single-4b"]
    with pytest.raises(SystemExit, match="there is no experiment 'singel'"):
        program.choose(everything, given("singel"))


@pytest.mark.parametrize("isa", [ISA, ("avx2",)])
def test_every_system_of_an_experiment_exists(isa: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cpu.systems.bf16_folder", lambda: "folder")
    known = systems(2, "1Gi", variants=("avx2",))
    for experiment in experiments(isa):
        assert set(experiment.systems) <= set(known)
        assert all({line.of, *line.to} <= set(experiment.systems) for line in experiment.lines)
    assert known["octavo-4bit-1b@avx2"].environment == {"OCTAVO_CPU_VARIANT": "avx2"}
    assert known["vllm-float32-4b"].memory > known["vllm-bfloat16-4b"].memory > 8e9


def test_variants_are_compared_with_the_first() -> None:
    single = next(e for e in experiments(ISA) if e.name == "single")
    found = by_variant(single, ("avx512bf16", "avx2"))
    assert found.systems == ("octavo-bf16@avx512bf16", "octavo-bf16@avx2", "octavo-4bit@avx512bf16", "octavo-4bit@avx2")
    assert [(line.of, line.to) for line in found.lines] == [
        ("octavo-bf16@avx2", ("octavo-bf16@avx512bf16",)),
        ("octavo-4bit@avx2", ("octavo-4bit@avx512bf16",)),
    ]
    with pytest.raises(ValueError, match="start is not about kernels"):
        by_variant(replace(single, name="start", command="start"), ("avx512bf16", "avx2"))


def test_floor_is_the_weights_of_each_step_or_the_multiply_adds() -> None:
    stream = floor(load("stream-64"), MODEL, LIMIT, bits4=True)
    assert stream.what == "memory"
    assert stream.seconds == pytest.approx(64 / 40)
    work = load("prefill-1024")
    prompt = floor(work, MODEL, LIMIT, bits4=True)
    assert prompt.what == "byte multiply-adds"
    assert prompt.seconds == pytest.approx(2 * (1024e9 + 1e8) / 800e9)
    assert floor(work, MODEL, LIMIT, bits4=False).seconds == pytest.approx(2 * prompt.seconds)
    assert floor(work, MODEL, {k: v for k, v in LIMIT.items() if "fp32" in k or "read" in k}, bits4=True).what == (
        "fp32 multiply-adds"
    )


@pytest.mark.parametrize(("seconds", "allowed"), [(2.0, "1.25 × (memory: below the goal)"), (3.2, "2 × (memory)")])
def test_a_goal_that_a_floor_forbids_is_said(seconds: float, allowed: str) -> None:
    records = [record("octavo-4bit-1b", 1.7), record("llama", seconds), limited()]
    [result] = results([SINGLE], records, "seconds", {"octavo-4bit-1b": {"model": MODEL}})
    assert f"| {allowed} |" in table([result])
    # Not with another model's limits, and not of CPU seconds.
    other = [record("octavo-4bit-1b", 1.7), record("llama", seconds), limited("roofline")]
    assert results([SINGLE], other, "seconds", {"octavo-4bit-1b": {"model": MODEL}})[0].floor is None


def test_limits_are_the_best_of_the_rounds() -> None:
    assert limits([limited(), limited() | {"read_gb_per_s": 44.0}, limited() | {"error": "no"}], "1b") == LIMIT | {
        "read_gb_per_s": 44.0
    }
    assert limits([limited()]) == {}


def test_bandwidth_is_weights_times_tokens_beside_a_plain_read() -> None:
    text = bandwidths([SINGLE], [record("octavo-4bit-1b", 2.0), limited()], {"octavo-4bit-1b": {"model": MODEL}})
    assert "| single-1b | octavo-4bit-1b | 1.000 | 32 | 32.0 | 40.0 | 80 % |" in text
    assert not bandwidths([SINGLE], [record("octavo-4bit-1b", 2.0)], {"octavo-4bit-1b": {"model": MODEL}})


def test_a_system_that_does_not_fit_is_said_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    records = [record("octavo-4bit-1b", 1.0)]
    [result] = results([SINGLE], records, "seconds", {}, {"llama": "no llama.cpp here"})
    assert "not measured: no llama.cpp here" in table([result])

    def full() -> None:
        raise RuntimeError("needs 8.0 GB, 2.0 are free")

    assert program.prepared(System([], prepare=full)).missing == "needs 8.0 GB, 2.0 are free"
    monkeypatch.setattr(program, "available_memory", lambda: 10**9)
    with Runners({"big": ["false"]}, tmp_path) as running:
        found = program.turn(running, "big", System([], memory=2 * 10**9), "load single-4", set())
    assert found == {"error": "big needs 2.0 GB of memory, 1.0 are available"}
