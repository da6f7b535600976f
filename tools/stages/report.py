"""The table at the end of a run: minutes and counts per stage, failed tests, and reasons of skipped tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from stages.run import Result

# Maximum length of a failure's message, which may contain whole objects.
_MESSAGE = 200


@dataclass(slots=True)
class Counts:
    """Numbers of test cases; `failures`: names of the failed ones, `reasons`: counts of the reasons for skips."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add another stage's counts."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.reasons += other.reasons


def counts(reports: Path) -> Counts:
    """The sum of pytest's XML reports in a folder; all zero without a report."""
    found = Counts()
    cases = (case for file in sorted(reports.glob("*.xml")) for case in _cases(file))
    for case in cases:
        skipped = case.find("skipped")
        failures = [*case.findall("failure"), *case.findall("error")]
        if failures:
            found.failed += 1
            message = " ".join(failures[0].get("message", "").split())
            found.failures.append(f"{case.get('classname')}::{case.get('name')}: {message[:_MESSAGE]}")
        elif skipped is not None:
            found.skipped += 1
            found.reasons[skipped.get("message") or "no reason given"] += 1
        else:
            found.passed += 1
    return found


def _cases(report: Path) -> Iterator[ET.Element]:
    return ET.parse(report).iter("testcase")  # noqa: S314 - a file that pytest has just written


def table(results: Sequence[Result]) -> str:
    """Stages with minutes and counts, failed tests, reasons of skips, and a last line with the totals.

    The last line reads `N passed, N failed, N skipped`. A stage that failed without a failed test, such as a linter,
    counts as one failure.
    """
    total = Counts()
    lines = ["", f"{'stage':<22}{'minutes':>8}{'passed':>9}{'failed':>9}{'skipped':>9}"]
    for result in results:
        found = counts(result.reports)
        if not result.passed and not found.failed:
            found.failed = 1
            found.failures = [f"make {result.stage}"]
        total.add(found)
        lines.append(
            f"{result.stage:<22}{result.seconds / 60:>8.1f}{found.passed:>9}{found.failed:>9}{found.skipped:>9}"
        )
    if total.failures:
        lines += ["", "failed:", *(f"  {failure}" for failure in total.failures)]
    if total.reasons:
        lines += ["", "skipped:", *(f"{number:>6} × {reason}" for reason, number in total.reasons.most_common())]
    return "\n".join([*lines, "", f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped"])
