"""What CI and CONTRIBUTING.md name is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.__main__ import LANES

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())
PREPARE = yaml.safe_load((ROOT / ".github/actions/prepare/action.yaml").read_text())
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def stages(job: dict[str, Any]) -> set[str]:
    """The targets that a job makes, those of its matrix one by one."""
    made = {found[1] for step in job["steps"] if (found := re.search(r"\bmake (.+)", step.get("run", "")))}
    matrix = job.get("strategy", {}).get("matrix", {}).get("include", [])
    return (made - {"${{ matrix.stage }}"}) | {one["stage"] for one in matrix}


def test_a_change_runs_the_stages_of_make_test_and_the_night_all_tests() -> None:
    jobs = WORKFLOW["jobs"]
    check = {"lint", "types", "unit"}
    assert (stages(jobs["stage"]) - {"check"}) | check == {stage for lane in LANES for stage in lane.stages}
    assert stages(jobs["nightly"]) == {"test-all"}
    assert {"check", "test-all", *check} <= TARGETS


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "README.md", "bench/README.md", ".github/pull_request_template.md"]
)
def test_documents_name_targets_that_exist(name: str) -> None:
    named = set(re.findall(r"(?:`|^ *)make ([a-z0-9-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert named
    assert named <= TARGETS


def test_ci_has_the_go_of_the_tools() -> None:
    [given] = [step["with"]["go-version-file"] for step in PREPARE["runs"]["steps"] if "setup-go" in step["uses"]]
    assert [ROOT / given] == list((ROOT / "tools").rglob("go.mod"))


def test_every_pattern_of_a_cache_key_finds_files() -> None:
    keys = [step["with"]["key"] for step in PREPARE["runs"]["steps"] if "actions/cache" in step["uses"]]
    patterns = [pattern for key in keys for pattern in re.findall(r"'([^']+)'", key)]
    assert patterns
    assert not [pattern for pattern in patterns if not list(ROOT.glob(pattern))]
