"""Rules of the kernel files that no other tool checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "inference" / "octavo_inference" / "backends" / "cuda" / "kernels"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
MOST_LINES = 200
# What a wrapper may not do: allocate, wait for the device, or read a value of it. A CUDA graph records none of these.
FORBIDDEN = {"item", "tolist", "cpu", "synchronize", "empty", "zeros", "full", "clone", "contiguous"}
FORBIDDEN |= {"empty_like", "zeros_like", "full_like"}


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def decorators(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list}


def wrappers(path: Path) -> list[ast.FunctionDef]:
    """Public functions that write into tensors: what other code calls."""
    return [
        function
        for function in functions(path)
        if not function.name.startswith("_")
        and "triton.jit" not in decorators(function)
        and function.returns is not None
        and ast.unparse(function.returns) == "None"
        and any("Torch" in ast.unparse(a.annotation) for a in arguments(function) if a.annotation)
    ]


def arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def test_the_folder_is_found() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_kernel_is_tuned_while_it_serves(path: Path) -> None:
    assert "autotune" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_wrappers_name_the_shapes(path: Path) -> None:
    """Of what they take: at least one [bracketed, shape]."""
    silent = [f.name for f in wrappers(path) if "[" not in (ast.get_docstring(f) or "")]
    assert not silent


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_wrappers_allocate_and_wait_for_nothing(path: Path) -> None:
    found = [
        f"{function.name}: {ast.unparse(node.func)}"
        for function in functions(path)
        if not decorators(function) & {"triton.jit", "jit"}
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN
    ]
    assert not found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_device_functions_return_something_or_nothing(path: Path) -> None:
    """Triton 3.6, the oldest that is supported, compiles no function that returns None by name."""
    found = [
        function.name
        for function in functions(path)
        if decorators(function) & {"triton.jit", "jit"}
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and node.value.value is None
    ]
    assert not found
