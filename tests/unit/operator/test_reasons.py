"""Every reason that the operator can give is in docs/operations/troubleshooting.md, and nothing else is."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from octavo_operator.api.resource import SpecRefusal
from octavo_operator.autoscale import messages as scaling_messages
from octavo_operator.autoscale import policy
from octavo_operator.events.diff import Event
from octavo_operator.observe import messages
from octavo_operator.observe.canary_analysis import AnalysisResult
from octavo_operator.observe.diagnosis import REASONS
from octavo_operator.status.conditions import ConditionState

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "operator" / "octavo_operator"
# Where reasons are plain strings: by class, the position of the reason among its arguments; and whole modules.
ARGUMENTS = {AnalysisResult.__name__: 1, ConditionState.__name__: 1, Event.__name__: 1, SpecRefusal.__name__: 0}
MODULES = {Path(module.__file__ or "") for module in (policy, scaling_messages, messages)}
WORD = re.compile(r"[A-Z][a-z]*[A-Z][A-Za-z]*|[A-Z][a-z]+")


def section() -> str:
    """The page without its table of symptoms, which has words of Kubernetes."""
    return (ROOT / "docs/operations/troubleshooting.md").read_text().partition("\n## Conditions\n")[2]


def documented() -> set[str]:
    """Words in the column of reasons (of failures: the first one), and those of the paragraph on the autoscaler."""
    found: set[str] = set()
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        column = cells[1] if len(cells) == 4 else cells[0] if len(cells) == 3 else "" if line.startswith("|") else line
        found |= {word for word in re.findall(r"`([A-Za-z]+)`", column) if WORD.fullmatch(word)}
    return found - {"Ready", "Degraded", "ModelResolved", "Scheduled", "LLMDeployment"}


def literals(node: ast.AST) -> set[str]:
    strings = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {text for text in strings if isinstance(text, str) and WORD.fullmatch(text)}


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(SOURCES.rglob("*.py"))]


@cache
def given() -> set[str]:
    """Reasons in the code: of verdicts and news, of the autoscaler's decisions, of failures."""
    found = set(REASONS)
    for path, tree in trees():
        if path in MODULES:
            found |= literals(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ARGUMENTS:
                place = ARGUMENTS[node.func.id]
                found |= {word for part in node.args[place : place + 1] for word in literals(part)}
    return found


def test_every_reason_is_documented() -> None:
    missing = given() - documented()
    assert not missing, f"docs/operations/troubleshooting.md: add {sorted(missing)}"


def test_no_reason_is_documented_that_is_not_given() -> None:
    everywhere = set().union(*(literals(tree) for _, tree in trees()))
    assert documented() - everywhere == set()


def test_reasons_are_stable_words() -> None:
    assert all(WORD.fullmatch(reason) for reason in given())
    assert len(set(REASONS)) == len(REASONS)
