"""Every kernel compiles for real GPUs, fits into them, and keeps what it computes in registers: by `bench.gpu compile`.

It runs in a process of its own, because here Triton interprets. What was compiled is kept below `~/.cache/octavo`, so
only a kernel that changed costs more than seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*program: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return subprocess.run(
        [sys.executable, "-m", *program], capture_output=True, text=True, check=False, env=env, cwd=ROOT
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "capabilities",
    [("80", "89"), pytest.param(("90", "100"), marks=pytest.mark.full)],  # the first two have the least shared memory
    ids=" and ".join,
)
def test_kernels_compile_and_fit(capabilities: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "compiled.json"
    done = run("bench.gpu", "compile", "--quick", "--capability", *capabilities, "--out", str(out))
    assert out.exists(), done.stderr
    rows = json.loads(out.read_text())["kernels"]
    bad = [row for row in rows if row["verdict"] not in {"compiled", "refused"}]
    assert not bad, "\n".join(f"{row['case']} {row['variant']}: {row.get('why', row)}" for row in bad)
    assert done.returncode == 0
    assert rows
    assert all(row["registers"] > 0 for row in rows if row["verdict"] == "compiled")


@pytest.mark.timeout(1800)
def test_faults_are_found(tmp_path: Path) -> None:
    """A tile too large for the card, one too large for the registers, a type that the card does not have."""
    done = run("tests.kernels.faulty_kernels", str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, *others = [line for line in done.stdout.splitlines() if line.startswith("89")]
    assert (
        "89 product failed OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376"
        in first
    )
    assert others == [
        "89 deep spills ",
        "89 copy compiled ",
        "89 copy compiled ",
        "89 copy compiled ",
    ]
    assert [line for line in done.stdout.splitlines() if line.startswith("80")] == [
        "80 product compiled ",
        "80 deep spills ",
        "80 copy refused no float8 below 8.9",
        "80 copy failed compiled, but no float8 was expected here",
        "80 copy compiled ",
    ]
