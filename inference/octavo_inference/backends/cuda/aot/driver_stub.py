"""Triton's driver stub, compiled when an image is built, because pods have no compiler.

Triton calls the CUDA driver through a small Python extension, `cuda_utils`. A process compiles it from Triton's
driver.c at first use, with gcc and Python's headers: a third of a gigabyte that no inference image should carry.
Instead, the image's build compiles it (`python driver_stub.py FROM TO`), without a GPU or a driver. `prepare` makes
Triton load it instead of compiling (`triton.knobs.build.impl`, Triton's hook for this).

Only the standard library is imported at the top: the file runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

NAME = "cuda_utils"
# Location in the image: below the environment that the server runs in.
FOLDER = Path(sys.prefix) / "lib" / "octavo"
_DRIVER = "libcuda.so.1"


class CompilerMissingError(RuntimeError):
    """Neither a compiled stub nor a compiler is present; the message names the package to install."""


def file_name(source: bytes) -> str:
    """Name of the stub compiled from `source` (driver.c) for this Python: each Triton and Python needs its own."""
    return f"{NAME}-{hashlib.sha256(source).hexdigest()[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"


def build(backend: Path, folder: Path) -> Path:
    """Compile the stub of Triton's folder backends/nvidia into `folder`; its path.

    Raises CompilerMissingError, also for a Triton whose stub would not replace a compiler, or CalledProcessError where
    the compiler fails.
    """
    source = backend / "driver.c"
    if not _has_launcher(source.read_bytes()):
        raise CompilerMissingError("this Triton compiles a launcher for each kernel, in the pod: Triton 3.7 is needed")
    compiler, headers = _compiler(), sysconfig.get_paths()["include"]
    if compiler is None or not _has_headers():
        raise CompilerMissingError("needed: a C compiler and Python's headers (apt-get install gcc python3-dev)")
    target = folder / file_name(source.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        # The node provides the driver. An empty library of its name is enough to link against.
        empty = Path(scratch, "empty.c")
        empty.touch()
        shared = [compiler, "-shared", "-fPIC"]
        driver = Path(scratch, _DRIVER)
        subprocess.run([*shared, f"-Wl,-soname,{_DRIVER}", "-o", str(driver), str(empty)], check=True)
        includes = [f"-I{backend / 'include'}", f"-I{headers}"]
        command = [*shared, "-O3", "-Wno-psabi", *includes, "-o", str(target), str(source)]
        subprocess.run([*command, "-Wl,--no-as-needed", str(driver)], check=True)
    return target


def prepare(folder: Path = FOLDER) -> None:
    """Make Triton load the stub in `folder` instead of compiling one; without a stub, check that it can compile.

    Must be called before the first kernel runs. Raises CompilerMissingError.
    """
    import triton  # noqa: PLC0415 - not installed when an image's build runs this file

    from octavo_inference.backends.cuda.aot import triton_hooks  # noqa: PLC0415 - likewise

    source = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    stub = folder / file_name(source.read_bytes())
    if stub.is_file() and triton_hooks.set_to("build.impl", _Stub(stub)):
        return
    if _compiler() is None or not _has_headers():
        missing = "no C compiler" if _compiler() is None else "no Python.h"
        raise CompilerMissingError(
            f"Triton compiles a part of itself when it first uses a GPU, and there is {missing}: use the image "
            "octavo-server, which brings it compiled, or install gcc and Python's headers (apt-get install gcc "
            "python3-dev)"
        )


class _Stub:
    """The function that Triton calls in place of a compiler."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str, source: str, *_: object) -> str:
        """Path of the compiled extension `name`. Raises CompilerMissingError for any but the stub."""
        if name == NAME and file_name(Path(source).read_bytes()) == self._path.name:
            return str(self._path)
        raise CompilerMissingError(f"Triton asks to compile {name}, which was not compiled ahead of time")


def _has_launcher(source: bytes) -> bool:
    """Whether the stub launches any kernel. Before Triton 3.7, each signature has a launcher to compile."""
    return b'"launch"' in source


def _compiler() -> str | None:
    """The C compiler that Triton would find."""
    given = os.environ.get("CC")
    return shutil.which(given) if given else shutil.which("gcc") or shutil.which("clang")


def _has_headers() -> bool:
    return Path(sysconfig.get_paths()["include"], "Python.h").is_file()


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
