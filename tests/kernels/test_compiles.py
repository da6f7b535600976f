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
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MachineCode = dict[tuple[str, str], dict[str, Any]]


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


@pytest.fixture(
    scope="module", params=[89, 90, pytest.param(80, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.full)]
)
def capability(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def machine_code(capability: int) -> MachineCode:
    """Resources and instructions by case and kernel."""
    done = run("tests.kernels.machine_code", str(capability))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["case"], row["kernel"]): row for row in rows}


@pytest.mark.timeout(1800)
def test_a_stage_is_a_tile_of_keys_and_values_in_flight(machine_code: MachineCode) -> None:
    """Each stage after the second has room for one more tile of both, and copies into it before the loop."""
    two, three, four = (machine_code[f"decode, {stages} stages", "_attend"] for stages in (2, 3, 4))
    tile = 2 * 32 * 128 * 2
    assert three["shared"] - two["shared"] == four["shared"] - three["shared"] == tile
    each = tile // (128 * 16)  # threads and bytes
    assert [row["instructions"]["LDGSTS"] for row in (two, three, four)] == [2 * each, 3 * each, 4 * each]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", ["decode", "split", "prompt"])
def test_default_tiles_of_attention_stay_in_registers(machine_code: MachineCode, case: str) -> None:
    assert machine_code[case, "_attend"]["stack"] == 0


@pytest.mark.timeout(1800)
def test_products_use_the_tensor_cores_of_the_card(machine_code: MachineCode, capability: int) -> None:
    """Tiles of 16 rows have the instructions of all GPUs, larger ones those of Hopper."""

    def used(case: str, kernel: str = "_attend") -> set[str]:
        return {"HMMA", "HGMMA"} & set(machine_code[case, kernel]["instructions"])

    experts = used("expert prompt", "_expert_linear")
    assert used("decode") == used("split") == used("expert linear fp8", "_expert_linear") == {"HMMA"}
    if capability == 90:
        assert used("prompt") == used("prompt of 128 rows") == experts == {"HGMMA"}
    elif capability < 90:
        assert used("prompt") == used("prompt of 128 rows") == experts == {"HMMA"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        ("gemv fp8", "_gemv"),
        ("linear fp8", "_linear"),
        ("gemv fp4", "_gemv"),
        ("linear fp4", "_linear"),
        ("gemv int4", "_gemv"),
        ("expert gemv fp8", "_expert_gemv"),
        ("expert linear fp8", "_expert_linear"),
        ("expert gemv fp4", "_expert_gemv"),
    ],
)
def test_denormals_are_kept_where_weights_are_decoded_by_shifts(
    machine_code: MachineCode, case: str, kernel: str
) -> None:
    """The smallest values of e4m3 and e2m1 become denormals of float32 on the way: flushed, they would be zero."""
    assert machine_code[case, kernel]["instructions"]["ftz"] == 0


@pytest.mark.timeout(1800)
def test_kernels_wait_for_the_one_before_where_launches_may_depend(machine_code: MachineCode, capability: int) -> None:
    """The wait and the release of the next kernel, in kernels of attention and products; older GPUs have neither."""
    for (case, kernel), row in machine_code.items():
        assert {"ACQBULK", "PREEXIT"} & set(row["instructions"]) == (
            {"ACQBULK", "PREEXIT"} if capability >= 90 else set()
        ), (case, kernel)
