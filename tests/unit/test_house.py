"""Rules of the house that no other tool checks."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "operator/octavo_operator",
    "gateway/octavo_gateway",
    "inference/octavo_inference",
    "protocol/octavo_protocol",
    "simulator/octavo_simulator",
]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# Modules that can run code found in data (SEC-1).
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load"}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PARTS = {"octavo_operator", "octavo_gateway", "octavo_inference"}
# Defined once, in tests/support.
HELPERS = {"eventually", "eventually_async", "free_port", "free_ports"}


def name(path: Path) -> str:
    """A file's name in the repository."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not [path for path in ROOT.rglob("operator.py") if ".venv" not in path.parts]


def test_python_starts_from_the_repository_root() -> None:
    subprocess.run([sys.executable, "-c", "import collections, operator; operator.add"], cwd=ROOT, check=True)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_code_from_data(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_IMPORTS:
            found.append(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
            found.append(ast.unparse(node.func))
    assert not found


def test_server_imports_no_tensor_library() -> None:
    """The CPU image carries no torch: `octavo-server` must not need it."""
    code = "import sys, octavo_inference; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_locks_name_no_address(path: Path) -> None:
    assert "://" not in path.read_text()


def test_helpers_of_tests_are_defined_once() -> None:
    found = [
        node.name
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in HELPERS
    ]
    assert sorted(found) == sorted(HELPERS)


def test_no_test_edits_the_import_path() -> None:
    """pytest's `pythonpath` names the folders."""
    edit = re.compile(r"^ *sys\.path(\.(insert|append|extend)\(|\[.*\] = | \+?= )", re.MULTILINE)
    assert not [name(path) for path in TESTS if edit.search(path.read_text())]


@pytest.mark.parametrize("folder", sorted(path for path in (ROOT / "tests/unit").iterdir() if path.is_dir()), ids=name)
def test_unit_tests_are_of_one_part(folder: Path) -> None:
    """Those that need two are in tests/contract."""
    # The simulator replays traces against the operator's policy and the gateway's router.
    own = {"octavo_operator", "octavo_gateway"} if folder.name == "simulator" else set()
    for path in folder.rglob("*.py"):
        parts = imported(path) & PARTS
        assert parts <= own or len(parts) <= 1, f"{name(path)} imports {' and '.join(sorted(parts))}"
        assert not (own and parts - own), f"{name(path)} imports {parts - own}"
