"""Rules of the house that no other tool checks."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "operator/octavo_operator",
    "gateway/octavo_gateway",
    "inference/octavo_inference",
    "protocol/octavo_protocol",
    "common/octavo_common",
    "simulator/octavo_simulator",
]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
# Modules that can run code found in data (SEC-1).
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load"}
# Sources without any of these words are not parsed: that is most of them.
SUSPICIOUS = re.compile(rf"\b({'|'.join(word.split('.')[0] for word in FORBIDDEN_IMPORTS | FORBIDDEN_CALLS)})\b")
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PARTS = {"octavo_operator", "octavo_gateway", "octavo_inference"}
# Defined once, in tests/support.
HELPERS = {"eventually", "eventually_async", "free_port", "free_ports"}


def name(path: Path) -> str:
    """A file's name in the repository."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    return set(re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE))


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not [path for path in ROOT.rglob("operator.py") if not {".venv", "build"} & set(path.parts)]


def test_python_starts_from_the_repository_root() -> None:
    subprocess.run([sys.executable, "-c", "import collections, operator; operator.add"], cwd=ROOT, check=True)


def runs_code(text: str) -> Iterator[str]:
    """What a module imports or calls that can run code found in data."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_IMPORTS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_IMPORTS:
            yield node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
            yield ast.unparse(node.func)


def test_no_code_from_data() -> None:
    texts = {name(path): path.read_text() for path in SOURCES}
    assert not [(path, word) for path, text in texts.items() if SUSPICIOUS.search(text) for word in runs_code(text)]


def test_server_imports_no_tensor_library() -> None:
    """The CPU image carries no torch: `octavo-server` must not need it."""
    code = "import sys, octavo_inference; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").rglob("*.txt")), ids=lambda path: path.name)
def test_locks_name_no_address(path: Path) -> None:
    assert "://" not in path.read_text()


def test_helpers_of_tests_are_defined_once() -> None:
    definition = re.compile(rf"^ *(?:async )?def _*({'|'.join(HELPERS)})\(", re.MULTILINE)
    found = [helper for path in TESTS for helper in definition.findall(path.read_text())]
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


# The same thing in two parts, which may not import each other.
SHARED_CLASSES = {"ApiError", "CompilerMissingError"}


def test_a_class_name_means_one_thing() -> None:
    found = defaultdict(list)
    for path in SOURCES:
        for class_name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            found[class_name].append(name(path))
    assert {key: paths for key, paths in found.items() if len(paths) > 1 and key not in SHARED_CLASSES} == {}


def pictured() -> dict[str, list[str]]:
    """Layers by part as the page on the layout draws them; an asterisk marks a pure package."""
    (page,) = (path for path in (ROOT / "docs").rglob("*.md") if "inference   __main__" in path.read_text())
    layers: dict[str, list[str]] = {}
    part = ""
    for line in page.read_text().split("```")[1].split("* pure")[0].splitlines():
        named, drawn = line[:12].strip(), line[12:].strip()
        part = named or part
        if drawn:
            layers.setdefault(part, []).append(drawn)
    return layers


def test_the_picture_of_the_layers_is_what_the_linter_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {c["containers"][0].removeprefix("octavo_"): c["layers"] for c in contracts if "containers" in c}
    (pure,) = (c["source_modules"] for c in contracts if c["name"].startswith("Decisions are pure"))
    drawn = pictured()
    assert {part: [re.sub(r" \(.*?\)|\*", "", layer) for layer in found] for part, found in drawn.items()} == layers
    marked = {
        f"octavo_{part}.{package}"
        for part, found in drawn.items()
        for layer in found
        for package in re.findall(r"(\w+)\*", layer)
    }
    assert {package.replace("octavo_operator.plan", "octavo_operator.reconcile.plan") for package in marked} == set(
        pure
    ) - {"octavo_simulator"}
