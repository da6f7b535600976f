"""Kernels that may start before the one before them has ended: each waits for its results before it does anything."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from octavo_inference.backends.cuda import kernels
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options
from octavo_inference.backends.cuda.kernels.target import capability

FOLDER = Path(kernels.__file__).parent
FUNCTIONS = {
    node.name: node
    for path in sorted(FOLDER.glob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name != "wait_for_previous"
}
WAITING = sorted(name for name, node in FUNCTIONS.items() if "wait_for_previous()" in ast.unparse(node))


def launched() -> set[str]:
    """Kernels that are launched with `launch_options`."""
    found = set()
    for node in FUNCTIONS.values():
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                given = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
                if {"launch_options()", "options"} & set(given):
                    found.add(ast.unparse(call.func.value))
    return found


def test_kernels_launched_with_the_options_are_those_that_wait() -> None:
    assert launched() == set(WAITING)
    assert {"_attend", "_gemv", "_add_rms_norm", "_draw"} <= set(WAITING)


@pytest.mark.parametrize("name", WAITING)
def test_a_kernel_waits_before_it_reads_writes_or_ends(name: str) -> None:
    """In every program: not in a branch, and before the first return. Only weights may be read before."""
    body = FUNCTIONS[name].body
    waits = next(i for i, statement in enumerate(body) if ast.unparse(statement) == "wait_for_previous()")
    before = "\n".join(ast.unparse(statement) for statement in body[:waits])
    assert "return" not in before
    assert "tl.store" not in before
    assert "tl.load" not in before, "but for weights, by _load_weights"


def test_the_interpreter_has_no_options_and_no_capability() -> None:
    assert capability() == 0
    assert launch_options() == {}
