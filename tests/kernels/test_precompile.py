"""Kernels compiled ahead are those that a server looks for, wherever their folder lies and whichever card runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A process that interprets cannot compile, so each test has processes of its own, without a compiler in reach.
ENV = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")} | {"PATH": "/nonexistent"}
MODEL = "smollm2-135m"

# The server's start, in a process that may not compile: a card with fewer multiprocessors, another profile.
START = f"""
import sys
from pathlib import Path
import triton
from octavo_inference import precompile
from octavo_inference.ops.cuda import kernel_cache
from octavo_inference.ops.cuda.null_driver import NullDriver

folder, capability = Path(sys.argv[1]), int(sys.argv[2])
precompile._PROCESSORS = 58
triton.backends.backends["nvidia"].compiler.add_stages = lambda *_: sys.exit("compiles")
kernel_cache.prepare(folder)
NullDriver(capability).activate()
job = precompile.Job((capability // 10, capability % 10), "{MODEL}", "auto", "auto")
found = precompile.warm_up(job, "latency")
print(found.ready, found.compiled)
"""


def run(*command: str, cache: Path) -> subprocess.CompletedProcess[str]:
    env = ENV | {"TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=env)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as an image has it: moved since it was filled, and not to be written to."""
    made = tmp_path_factory.mktemp("build") / "kernels"
    done = run(
        "-m", "octavo_inference.precompile", "--out", str(made), "--capability", "9.0", "--model", MODEL, "--jobs", "1",
        cache=tmp_path_factory.mktemp("unused"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"9.0 {MODEL}, KV auto, weights auto: " in done.stdout
    moved = tmp_path_factory.mktemp("image") / "kernels"
    made.rename(moved)
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return moved


@pytest.mark.timeout(1800)
def test_a_server_finds_all_its_kernels_and_compiles_none(image: Path, tmp_path: Path) -> None:
    done = run("-c", START, str(image), "90", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    ready, compiled = map(int, done.stdout.split())
    assert ready > 10
    assert compiled == 0
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.timeout(1800)
def test_what_the_folder_lacks_is_compiled_as_ever(image: Path, tmp_path: Path) -> None:
    """For another card Triton begins to compile, which the process does not let it."""
    done = run("-c", START, str(image), "80", cache=tmp_path)
    assert done.returncode != 0
    assert "compiles" in done.stderr
