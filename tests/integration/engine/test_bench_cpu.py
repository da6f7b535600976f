"""The CPU bench runs, small; its figures are for people with a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_inference.ops.native import library

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not library.available(), reason="no native kernels: `python -m octavo_inference.ops.native.build`")
def test_bench_of_the_cpu_engine_writes_its_report(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    subprocess.run(
        [
            *(sys.executable, "bench/cpu.py", "--alone", "--rounds", "1"),
            *("--loads", "single-4", "mix-2", "--output", str(output)),
        ],
        cwd=ROOT,
        check=True,
    )
    report = json.loads(output.read_text())
    assert [r["load"] for r in report["rounds"]] == ["single-4", "mix-2"]
    assert report["summary"]["single-4"]["tokens_per_second"]["octavo"]["median"] > 0
    assert report["contestants"]["octavo"]["versions"]["backend"].startswith("cpu (")
