"""The runner of `make test`: lanes side by side, a failure ends its lane alone, everything is counted."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from stages import report
from stages.run import Lane, Result, run

MAKEFILE = """
first:
\t@echo one; touch first-done
second:
\t@test -e first-done && echo two
broken:
\t@echo three; exit 3
never:
\t@touch never-run
waiting:
\t@test -e first-done
nice:
\t@nice; cat /proc/self/autogroup || echo nice 3
tests:
\t@cp report.xml $(OCTAVO_TEST_REPORTS)/tests.xml
"""
REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase classname="tests.b" name="b"><failure message="no:&#10; 2 is not 3"/></testcase>
<testcase name="c"><skipped message="no GPU"/></testcase><testcase name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "report.xml").write_text(REPORT)
    return tmp_path


def outcome(root: Path, *lanes: Lane) -> tuple[dict[str, Result], str]:
    out = io.StringIO()
    results = run(lanes, root, os.environ, out)
    return {result.stage: result for result in results}, out.getvalue()


def test_stages_of_a_lane_run_in_order_and_each_line_names_its_stage(root: Path) -> None:
    results, output = outcome(root, Lane(("first", "second")))
    assert [result.passed for result in results.values()] == [True, True]
    assert "first  | one\n" in output
    assert "second | two\n" in output


def test_a_failure_ends_its_lane_alone(root: Path) -> None:
    results, output = outcome(root, Lane(("broken", "never")), Lane(("first",)))
    assert {name: result.passed for name, result in results.items()} == {"broken": False, "first": True}
    assert not (root / "never-run").exists()
    assert "FAILED: make broken exited with 2" in output


def test_a_lane_waits_for_the_stage_that_it_comes_after(root: Path) -> None:
    results, _ = outcome(root, Lane(("waiting",), after="first"), Lane(("first",)))
    assert results["waiting"].passed


def test_a_lane_whose_predecessor_never_ran_because_of_a_failure_runs_all_the_same(root: Path) -> None:
    results, _ = outcome(root, Lane(("broken", "first")), Lane(("second",), after="first"))
    assert set(results) == {"broken", "second"}


def test_a_lane_yields_by_its_niceness(root: Path) -> None:
    _, output = outcome(root, Lane(("nice",), niceness=3))
    assert f"| {os.nice(0) + 3}\n" in output
    assert "nice 3\n" in output


def test_counts_and_reasons_end_in_one_line(root: Path) -> None:
    results, _ = outcome(root, Lane(("tests", "broken")))
    text = report.table(list(results.values()))
    assert "2 × no GPU" in text
    assert "tests.b::b: no: 2 is not 3\n" in text
    assert "  make broken\n" in text
    assert text.splitlines()[-1] == "1 passed, 3 failed, 2 skipped"


def test_only_chosen_stages_run_and_none_is_waited_for_that_is_not_chosen() -> None:
    lane = Lane(("first", "second"), after="other")
    assert lane.only(["second"]) == Lane(("second",))
    assert lane.only(["first", "second", "other"]) == lane
