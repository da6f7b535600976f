"""`bench.gpu.first` and what it takes along: its plan, its files, and a rehearsal from a bare folder."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import pack, taken
from bench.gpu.first import BUDGET, SOURCES, Machine, run, run_step
from bench.gpu.first_steps import CALLS, Step, tiny
from bench.lib.processes import ROOT

TORCH = ("torch", "triton", "numpy", "setuptools")
"""What a machine with a card has, with what these need."""


# The plan


def test_a_call_is_checked_before_it_is_measured_and_ends_within_ten_minutes() -> None:
    names = [[step.name for step in steps] for steps in CALLS.values()]
    assert names[0][:4] == ["facts", "check-kernels", "memcheck", "check-engine"]
    assert len({name for call in names for name in call}) == sum(map(len, names))
    assert BUDGET < 600
    for steps in CALLS.values():
        # The last ones may be left out; the tools run for faults only, or not at all.
        assert sum(step.limit for step in steps if not step.under) <= 1.1 * BUDGET


def test_tiny_steps_run_no_tools_and_one_kernel() -> None:
    for steps in CALLS.values():
        small = tiny(steps)
        assert not any(step.under for step in small)
        assert [step.name for step in small] == [step.name for step in steps if not step.under]


# Steps


def machine(tmp_path: Path) -> Machine:
    """Folders of a call."""
    folders = [tmp_path / name for name in ("results", "kernels", "large")]
    for folder in folders:
        folder.mkdir()
    return Machine(*folders, dict(os.environ), interpret=True)


def test_a_step_that_fails_is_named_with_its_last_line_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [Step("first", ("nonsense",), 60), Step("second", ("report", str(tmp_path)), 60)]
    assert run(1, steps, machine(tmp_path), tmp_path / "out", 100) == 1
    report = json.loads((tmp_path / "out" / "run-1.json").read_text())
    assert [row["name"] for row in report["steps"]] == ["first", "second"]
    assert report["steps"][0]["status"] == "exit status 2"
    assert "invalid choice" in report["steps"][0]["why"]
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("| second |")
    with tarfile.open(tmp_path / "out" / "run-1.tar.gz") as archive:
        assert {"first.log", "second.log"} <= set(archive.getnames())


def test_a_step_without_time_or_a_tool_or_a_fault_does_not_run(tmp_path: Path) -> None:
    here = machine(tmp_path)
    step = Step("step", ("check",), 60)
    assert run_step(step, here, 5.0)["status"] == "no time"
    assert run_step(replace(step, under=("no-such-tool",)), here, 60)["why"] == "no-such-tool is not installed"
    assert run_step(replace(step, after="check-kernels"), here, 60)["why"] == "check-kernels found no fault"


def test_the_first_kernel_that_failed_is_run_again_under_the_tool(tmp_path: Path) -> None:
    here = machine(tmp_path)
    rows = [{"kernel": "good", "verdict": "ok"}, {"kernel": "attend", "verdict": "wrong"}]
    (here.results / "check-kernels.json").write_text(json.dumps({"rows": rows}))
    row = run_step(Step("memcheck", ("check",), 60, ("env",), after="check-kernels"), here, 60)
    assert row["arguments"][row["arguments"].index("--only") + 1] == "attend"


# What is taken along


def test_wheels_are_unpacked_where_their_modules_are_lacking(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name, file in (("absent", "absent_module/__init__.py"), ("single", "absent_too.py"), ("here", "json/x.py")):
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(file, "")
            wheel.writestr(f"{name}-1.dist-info/METADATA", "")
    assert taken.unpack_wheels(tmp_path, tmp_path / "site") == ["absent", "single"]
    assert (tmp_path / "site" / "absent_module" / "__init__.py").exists()
    assert (tmp_path / "site" / "absent_too.py").exists()


def test_kernels_are_found_wherever_they_are_unpacked(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = cache / "KEY"
    folder.mkdir(parents=True)
    for name in ("a.cubin", "a.json", "a.source"):
        (folder / name).write_text(name)
    paths = {name: f"/elsewhere/KEY/{name}" for name in ("a.cubin", "a.json")}
    (folder / "__grp__a.json").write_text(json.dumps({"child_paths": paths}))
    taken.trim(cache)
    taken.archive(tmp_path / "kernels.tar.gz", cache, ["KEY"])
    assert taken.unpack_kernels(tmp_path / "kernels.tar.gz", tmp_path / "other") == 1
    listed = json.loads((tmp_path / "other" / "KEY" / "__grp__a.json").read_text())["child_paths"]
    assert {Path(path).read_text() for path in listed.values()} == {"a.cubin", "a.json"}
    assert not list((tmp_path / "other").glob("*/*.source"))


def test_results_of_an_earlier_call_come_back_but_replace_nothing(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    for folder, text in ((before, "old"), (now, "new")):
        folder.mkdir()
        (folder / "a.json").write_text(text)
    (before / "b.json").write_text("old")
    taken.archive(tmp_path / "run-1.tar.gz", before, ["a.json", "b.json"])
    taken.unpack_results(tmp_path / "run-1.tar.gz", now)
    assert ((now / "a.json").read_text(), (now / "b.json").read_text()) == ("new", "old")


# The rehearsal


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our sources, the packages of a machine with torch, and wheels of what else the calls import."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("bench", *SOURCES):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "results")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    site, there = folder / "machine", closure(TORCH)
    site.mkdir()
    for name in there:
        for top in tops(name):
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))))
    wheels = folder / "taken" / "wheels"
    wheels.mkdir(parents=True)
    known = importlib.metadata.packages_distributions()
    imported = pack.probe(pack.PROGRAMS, [*(str(ROOT / name) for name in SOURCES), str(ROOT)])
    for name in sorted({plain(one) for module in imported for one in known.get(module, [])} - there):
        if name != "octavo":
            as_wheel(name, wheels)
    return folder


def closure(names: Iterable[str]) -> set[str]:
    """Installed packages that these need, and themselves."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = plain(waiting.pop())
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[\s;\[<>=!~(]", each)[0] for each in requires if "extra ==" not in each]
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def tops(name: str) -> set[str]:
    """Files and folders of a package in its environment's folder."""
    parts = {file.parts[0] for file in importlib.metadata.files(name) or []}
    return {part for part in parts if part not in {"..", "__pycache__"}}


def as_wheel(name: str, folder: Path) -> None:
    """Pack an installed package as a wheel."""
    distribution = importlib.metadata.distribution(name)
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{distribution.version}-py3-none-any.whl", "w") as wheel:
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file)))
            if file.parts[0] != ".." and file.suffix != ".pyc" and path.is_file():
                wheel.write(path, str(file))


def call(bare: Path, number: int, *arguments: str, along: str = "taken") -> tuple[int, dict[str, Any]]:
    """Run a call with a Python that has no packages of its own."""
    python = Path(sys.base_prefix, "bin", "python3")
    env = {"PATH": os.environ["PATH"], "HOME": str(bare), "PYTHONPATH": str(bare / "machine"), "PYTHONNOUSERSITE": "1"}
    command = [str(python), "-m", "bench.gpu.first", str(number), "--interpret", "--out", str(bare / f"out-{along}"),
               "--taken", str(bare / along), "--work", str(bare / f"work-{along}"), *arguments]  # fmt: skip
    done = subprocess.run(command, cwd=bare, env=env, check=False, capture_output=True, text=True)
    report: dict[str, Any] = json.loads((bare / f"out-{along}" / f"run-{number}.json").read_text())
    (bare / f"out-{along}" / "said").write_text(done.stdout + done.stderr)
    return done.returncode, report


@pytest.mark.timeout(300)
def test_a_bare_folder_has_all_that_a_call_needs(bare: Path) -> None:
    status, report = call(bare, 1, "--only", "facts", "check-kernels", "load-0.6b")
    assert [(row["name"], row["status"]) for row in report["steps"]] == [
        ("facts", "ok"), ("check-kernels", "ok"), ("load-0.6b", "ok")
    ], (bare / "out-taken" / "said").read_text()  # fmt: skip
    assert status == 0
    assert "msgspec" in report["notes"][0]
    files = sorted(path.name for path in (bare / "out-taken").glob("run-1*"))
    assert files == ["run-1.json", "run-1.tar.gz", "run-1.txt"]


@pytest.mark.timeout(300)
def test_without_what_is_taken_along_a_call_says_what_is_lacking_and_goes_on(bare: Path) -> None:
    status, report = call(bare, 1, "--only", "facts", "check-kernels", along="nothing")
    assert status == 1
    assert [row["status"] for row in report["steps"]] == ["exit status 1"] * 2
    assert "No module named 'msgspec'" in report["steps"][0]["why"]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", sorted(CALLS))
def test_every_call_runs_from_a_bare_folder(bare: Path, number: int) -> None:
    status, report = call(bare, number)
    assert {row["status"] for row in report["steps"]} == {"ok"}, (bare / "out-taken" / "said").read_text()
    assert status == 0
