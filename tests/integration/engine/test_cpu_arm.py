"""The CPU kernels for ARM: each variant compiles, and an emulator runs the kernels' own tests with it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from octavo_inference.backends.cpu.native import build
from toolbox import arm
from toolbox.errors import ToolError

ROOT = Path(__file__).parents[3]
NATIVE = Path("octavo_inference/backends/cpu/native")
# What the kernels and their tests import.
DISTRIBUTIONS = (
    *("execnet", "gguf", "hypothesis", "iniconfig", "msgspec", "numpy", "packaging", "pluggy", "pygments", "pytest"),
    *("pytest-asyncio", "pytest-timeout", "pytest-xdist", "pyyaml", "sortedcontainers", "tqdm", "typing-extensions"),
)
# The instructions that a variant has and the ones before have not.
INSTRUCTIONS = {"neonbf16": {"bfdot", "bfmmla", "bfcvtn"}, "neondot": {"sdot"}, "portable": {"fmla"}}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the server's package with the kernels for ARM."""
    if platform.machine() == "aarch64":
        pytest.skip("this processor is ARM: tests/unit/cpu runs its variants without an emulator")
    if shutil.which(arm.COMPILER) is None:
        pytest.skip(f"no {arm.COMPILER} (Debian's g++-aarch64-linux-gnu): the CPU kernels for ARM are not compiled")
    folder = tmp_path_factory.mktemp("arm")
    shutil.copytree(
        ROOT / "inference", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"), dirs_exist_ok=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", arm.COMPILER)
        built = build.build(folder / NATIVE)
    assert {path.name for path in built} == set(map(build.object_name, build.ARM_VARIANTS))
    return folder


@pytest.mark.timeout(1800)  # compiles all of them on a machine's first run
def test_each_variant_compiles_to_its_instructions(package: Path) -> None:
    seen = {}
    for name in build.ARM_VARIANTS:
        listing = subprocess.run(
            ["aarch64-linux-gnu-objdump", "--disassemble", str(package / NATIVE / build.object_name(name))],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        seen[name] = {part for line in listing.splitlines() for part in line.split("\t")[2:3]}
    for better, worse in (("neonbf16", "neondot"), ("neondot", "portable")):
        assert INSTRUCTIONS[better] <= seen[better] - seen[worse]
    assert INSTRUCTIONS["portable"] <= seen["portable"]


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_each_variant_passes_the_kernels_tests_in_an_emulator(package: Path) -> None:
    try:
        command, site = arm.python(ROOT / "requirements" / "dev.txt", DISTRIBUTIONS, ROOT / ".venv" / "bin" / "uv")
    except ToolError as error:
        pytest.skip(f"no emulated Python for ARM: {error}")
    # A worker for each processor. Linux does not know how to start a program for ARM by itself.
    workers = ["--dist", "worksteal", "--tx", f"{os.cpu_count()}*popen//python={' '.join(command)}"]
    result = subprocess.run(
        [*command, "-m", "pytest", "-v", "-p", "no:cacheprovider", *workers, "tests/unit/cpu"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if name != "OCTAVO_CPU_VARIANT"},
            "PYTHONPATH": ":".join(map(str, (package, site, ROOT / "protocol", ROOT / "common"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OCTAVO_TEST_TIER": "test",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    for name in build.ARM_VARIANTS:
        assert f"test_a_row_of_a_float_linear[{name}]" in result.stdout
