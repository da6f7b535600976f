"""Kernels that may start before the one before them has ended: each waits for its results before it does anything."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from octavo_inference.backends.cuda import kernels
from octavo_inference.backends.cuda.kernels import dependent_launch
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options
from octavo_inference.backends.cuda.kernels.target import capability

FOLDER = Path(kernels.__file__).parent
Name = tuple[str, str]
"""Of a module, and of a function in it."""
FUNCTIONS: dict[Name, ast.FunctionDef] = {
    (path.stem, node.name): node
    for path in sorted(FOLDER.glob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name != "wait_for_previous"
}
WAITING = sorted(name for name, node in FUNCTIONS.items() if "wait_for_previous()" in ast.unparse(node))
BEFORE = {"load_weights", "is_four_bits", "nothing", "tl.program_id", "tl.arange", "tl.num_programs"}
"""Functions that a kernel may call before it waits: they read weights, or nothing."""


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
    assert launched() == {name for _, name in WAITING}
    assert {("attention", "_attend"), ("linear", "_reduce"), ("split_kv_reduce", "_reduce")} <= set(WAITING)


@pytest.mark.parametrize("name", WAITING, ids=".".join)
def test_a_kernel_waits_before_it_reads_writes_or_ends(name: Name) -> None:
    """In every program: not in a branch, and before the first return. Only weights may be read before."""
    body = FUNCTIONS[name].body
    waits = next(i for i, statement in enumerate(body) if ast.unparse(statement) == "wait_for_previous()")
    nodes = [node for statement in body[:waits] for node in ast.walk(statement)]
    assert not any(isinstance(node, ast.Return) for node in nodes)
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert {name for name in called if not name.endswith(".to")} <= BEFORE


@pytest.mark.parametrize(("driver", "there"), [(0, True), (12_020, False), (12_030, True), (13_000, True)])
def test_a_driver_without_them_in_graphs_gets_none(driver: int, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch, "_driver", lambda: driver)
    monkeypatch.setattr(dependent_launch, "capability", lambda: 90)
    assert launch_options() == ({"launch_pdl": True} if there else {})
    monkeypatch.setattr(dependent_launch, "capability", lambda: 89)
    assert launch_options() == {}


def test_the_interpreter_has_no_options_and_no_capability() -> None:
    assert capability() == 0
    assert launch_options() == {}
