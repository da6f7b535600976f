"""The benchmarks run, small; their figures are for people with a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.native import needs_native

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.full,
    needs_native,
    pytest.mark.timeout(1200),
]
# One thread: two of a step wait for each other, and on a busy machine mostly for a core.
ONE_THREAD = ("--threads", "1")


def bench(output: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """The records of a run without peers at 1/64 of the size, by experiment and system."""
    command = [sys.executable, "-m", "bench.cpu", "--alone", "--rounds", "1", "--scale", "64", "--kv-memory", "256Mi"]
    subprocess.run([*command, *ONE_THREAD, "--output", str(output), *arguments], cwd=ROOT, check=True)
    records = json.loads(output.read_text())["records"]
    assert [r["error"] for r in records if "error" in r] == []
    return {f"{r['experiment']} {r['system']}": r for r in records}


def test_every_load_runs_offline_and_over_http(tmp_path: Path) -> None:
    found = bench(tmp_path / "loads.json", "--only", "mix-64", "prefill", "arrival", "idle")
    assert found["mix-64 octavo-4bit"]["tokens"] == found["mix-64 octavo-4bit-http"]["tokens"]
    assert found["prefill octavo-bf16"]["tokens"] == 16
    assert found["arrival octavo-4bit-http"]["quiet_p99_ms"] > 0  # type: ignore[operator]
    assert "| mix-64 over HTTP, to offline | ≥ 92 %" in (tmp_path / "loads.md").read_text()


def test_memory_and_profile_are_measured_and_a_run_can_be_continued(tmp_path: Path) -> None:
    output = tmp_path / "own.json"
    first = bench(output, "--only", "memory")
    found = bench(output, "--only", "memory", "profile", "roofline", "--resume", str(output))
    assert found["memory octavo-4bit"] == first["memory octavo-4bit"]
    steps = found["profile octavo-bf16"]["steps"]
    assert set(steps) == {"decode 1", "decode 8", "decode 64", "prefill 256", "prefill 512"}  # type: ignore[call-overload]
    assert "| bf16 | decode 64 |" in output.with_suffix(".md").read_text()


def test_every_step_of_the_ladder_runs(tmp_path: Path) -> None:
    output = tmp_path / "ladder.json"
    command = [sys.executable, "-m", "bench.cpu.ladder", *ONE_THREAD, "--rounds", "1", "--requests", "2"]
    subprocess.run([*command, "--output", str(output)], cwd=ROOT, check=True)
    [found] = json.loads(output.read_text())["rounds"]
    assert list(found) == ["naive", "static", "continuous", "paged", "prefix", "chunked", "quantised"]
    assert found["naive"]["most_at_once"] == 1
    assert found["paged"]["most_at_once"] == 2
    assert "<svg" in output.with_suffix(".svg").read_text()


def test_formats_are_compared(tmp_path: Path) -> None:
    output = tmp_path / "formats.json"
    command = [sys.executable, "-m", "bench.cpu.formats", "--scale", "64", "--output", str(output)]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    formats = json.loads(output.read_text())["formats"]
    assert formats["q4_1"]["bits"] == 5
    assert 0.001 < formats["q4_k"]["error"] < 0.02
    assert formats["q8_0"]["kl"] < 0.05
    assert "| Q6_K | 7.50 |" in printed
    assert formats["fp8 rows"]["error"] < 0.01
    assert 4.5 < formats["nvfp4"]["bits"] < 5.1
