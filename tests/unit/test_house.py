"""Rules of the house that no other tool checks."""

import ast
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


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not [path for path in ROOT.rglob("operator.py") if ".venv" not in path.parts]


def test_python_starts_from_the_repository_root() -> None:
    subprocess.run([sys.executable, "-c", "import collections, operator; operator.add"], cwd=ROOT, check=True)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
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
