"""Kernels compiled ahead are those that a server looks for, wherever their folder lies and whichever card runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import triton
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.cache import FileCacheManager

from octavo_inference.backends.cuda.aot import kernel_cache
from octavo_inference.backends.cuda.aot.null_driver import NullDriver
from octavo_inference.tools import precompile

# A process that interprets cannot compile, so each test has processes of its own, without a compiler in reach.
ENV = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")} | {"PATH": "/nonexistent"}
MODEL = "smollm2-135m"

# The server's start, in a process that may not compile: a card with fewer multiprocessors, another profile.
START = f"""
import sys
from pathlib import Path
import triton
from octavo_inference.tools import precompile
from octavo_inference.backends.cuda.aot import kernel_cache
from octavo_inference.backends.cuda.aot.null_driver import NullDriver

folder, capability = Path(sys.argv[1]), int(sys.argv[2])
precompile._PROCESSORS = 58
triton.backends.backends["nvidia"].compiler.add_stages = lambda *_: sys.exit("compiles")
kernel_cache.prepare(folder)
NullDriver(capability).activate()
job = precompile.CompileJob((capability // 10, capability % 10), "{MODEL}", "auto", "auto")
found = precompile.warm_up(job, "latency")
print(found.ready, found.compiled)
"""

# Rehearsals of two models without compilers, which have memory of their own: the most MiB that the process held.
REHEARSE = """
import resource
from triton.runtime.jit import JITFunction
from octavo_inference.backends.cuda.aot.formats import FORMATS
from octavo_inference.backends.cuda.aot.null_driver import NullDriver
from octavo_inference.tools import precompile

JITFunction.run = lambda *_, **__: None
NullDriver(90).activate()
for model, weights in (("llama-3.1-8b", "auto"), ("qwen3-14b", "auto"), *(("smollm2-135m", name) for name in FORMATS)):
    precompile.warm_up(precompile.CompileJob((9, 0), model, "auto", weights))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def run(*command: str, cache: Path) -> subprocess.CompletedProcess[str]:
    env = ENV | {"TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=env)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as an image has it: moved since it was filled, and not to be written to."""
    made = tmp_path_factory.mktemp("build") / "kernels"
    done = run(
        "-m", "octavo_inference.tools.precompile", "--out", str(made), "--capability", "9.0", "--model", MODEL,
        "--jobs", "1",
        cache=tmp_path_factory.mktemp("unused"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"9.0 {MODEL}, KV auto, weights auto: " in done.stdout
    moved = tmp_path_factory.mktemp("image") / "kernels"
    made.rename(moved)
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return moved


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_server_finds_all_its_kernels_and_compiles_none(image: Path, tmp_path: Path) -> None:
    done = run("-c", START, str(image), "90", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    ready, compiled = map(int, done.stdout.split())
    assert ready > 10
    assert compiled == 0
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_what_the_folder_lacks_is_compiled_as_ever(image: Path, tmp_path: Path) -> None:
    """For another card Triton begins to compile, which the process does not let it."""
    done = run("-c", START, str(image), "80", cache=tmp_path)
    assert done.returncode != 0
    assert "compiles" in done.stderr


def test_models_of_any_size_take_little_memory(tmp_path: Path) -> None:
    """Weights and buffers, 4 GiB of these two in bfloat16, are never written. The rest varies with the processors."""
    done = run("-c", REHEARSE, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2560


def test_triton_asks_of_a_real_card_nothing_else() -> None:
    """The target that real drivers give is a part of the key."""
    real = object.__new__(CudaDriver)
    real.get_current_device, real.get_device_capability = lambda: 0, lambda _device: (9, 0)
    assert real.get_current_target() == NullDriver(90).get_current_target()


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], FileCacheManager]:
    """A cache with one kernel in the image's folder, and an empty one to write to."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "made"))
    monkeypatch.setattr(triton.knobs.cache, "manager_class", None)
    made = FileCacheManager("key")
    files = {name: made.put(b"x", name) for name in ("k.cubin", "k.json", "k.source")}
    made.put_group("k.json", files)
    kernel_cache.trim(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "image")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "pod"))
    kernel_cache.prepare(tmp_path / "image")
    return lambda: triton.knobs.cache.manager_class("key")


def test_the_images_files_are_read_and_the_pods_written(
    layered: Callable[[], FileCacheManager], tmp_path: Path
) -> None:
    image = {name: str(tmp_path / "image" / "key" / name) for name in ("k.cubin", "k.json")}
    assert layered().get_group("k.json") == image
    assert layered().get_file("k.cubin") == image["k.cubin"]
    own = layered().put(b"y", "other.cubin")
    assert own == str(tmp_path / "pod" / "key" / "other.cubin")
    assert layered().get_file("other.cubin") == own
    assert layered().get_file("none.cubin") is None


def test_a_kernel_of_which_a_file_is_missing_is_compiled(
    layered: Callable[[], FileCacheManager], tmp_path: Path
) -> None:
    (tmp_path / "image" / "key" / "k.cubin").unlink()
    assert layered().get_group("k.json") is None
    made = {"k.json": layered().put(b"{}", "k.json"), "k.cubin": layered().put(b"z", "k.cubin")}
    layered().put_group("k.json", made)
    assert layered().get_group("k.json") == made


def test_without_a_folder_triton_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "manager_class", None)
    kernel_cache.prepare(tmp_path / "none")
    assert triton.knobs.cache.manager_class is None


def test_only_what_a_card_can_compute_is_compiled_for_it() -> None:
    def names(capability: str) -> list[str]:
        return [
            str(job) for job in precompile.jobs_of(capability, ["qwen2.5-7b"], ["auto", "fp8"], ["auto"], [1, 4, 8])
        ]

    shapes = ["qwen2.5-7b, KV {}, weights auto", "qwen2.5-7b over 4 GPUs, KV {}, weights auto"]
    assert names("8.6") == ["8.6 " + shape.format("auto") for shape in shapes]
    assert names("8.9") == ["8.9 " + shape.format(kv) for kv in ("auto", "fp8") for shape in shapes]
