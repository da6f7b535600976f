"""Compiles the native kernels: one shared object per instruction set, cached by content outside the clone.

`python -m octavo_inference.backends.cpu.native.build` builds manually; the wheel's build hook (hatch_build.py) calls
`build`. The variants are those of the architecture that the compiler compiles for, so `CXX=aarch64-linux-gnu-g++`
compiles for ARM. The module uses only the standard library, because the hook runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMON_FLAGS = (
    "-std=c++20",
    "-O3",
    # Not -ffast-math: linked into a shared object it would switch off denormals in the whole process.
    "-fno-math-errno",
    # By default the compiler chooses which products of a sum to fuse, differently in each tile. The kernels write fma()
    # where they fuse, so that a row's result does not depend on the tile that computes it.
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    # The runtime image contains libc and libm only.
    "-static-libstdc++",
    "-static-libgcc",
)
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
X86_VARIANTS: dict[str, tuple[str, ...]] = {
    "amx": (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"),
    "avx512bf16": (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
    "avx512vnni": (*_AVX512, "-mavx512vnni"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
}
ARM_VARIANTS: dict[str, tuple[str, ...]] = {
    "neonbf16": ("-march=armv8.2-a+dotprod+bf16",),
    "neondot": ("-march=armv8.2-a+dotprod",),
    "portable": (),  # the compiler's baseline includes NEON
}
OTHER_VARIANTS: dict[str, tuple[str, ...]] = {"portable": ()}


class CompilerMissingError(RuntimeError):
    """No C++ compiler on PATH."""


def variants() -> dict[str, tuple[str, ...]]:
    """Map variant name to compiler flags for the architecture that is compiled for.

    That is the compiler's; this machine's without a compiler.
    """
    try:
        machine = _ask(compiler(), "-dumpmachine").partition("-")[0]
    except CompilerMissingError:
        machine = platform.machine()
    return {"x86_64": X86_VARIANTS, "aarch64": ARM_VARIANTS}.get(machine, OTHER_VARIANTS)


def compiler() -> str:
    """The C++ compiler: $CXX, g++ or clang++. Raises CompilerMissingError."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise CompilerMissingError("no C++ compiler found (g++ or clang++); on Debian or Ubuntu: apt-get install g++")


def cache_folder() -> Path:
    """Cache folder of built objects, for all clones: $OCTAVO_CACHE, $XDG_CACHE_HOME/octavo or ~/.cache/octavo."""
    if own := os.environ.get("OCTAVO_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def object_name(variant: str) -> str:
    """File name of a variant's shared object."""
    return f"octavo_{variant}.so"


def build(target: Path = HERE, names: tuple[str, ...] = (), say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Build the shared objects into `target`, or copy them from the cache; their paths.

    Raises CompilerMissingError, or CalledProcessError with the compiler's message in `stderr`.
    """

    def one(variant: str) -> Path:
        compiled = compile_object(object_name(variant), variants()[variant], say)
        result = target / object_name(variant)
        # A running server may have mapped the old object: replace the file, never write into it.
        partial = result.with_suffix(f".{os.getpid()}")
        shutil.copyfile(compiled, partial)
        partial.replace(result)
        return result

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, names or tuple(variants())))


def uncached() -> list[str]:
    """Names of the variants that `build` would compile. Raises CompilerMissingError."""
    return [name for name, flags in variants().items() if not _cached(object_name(name), flags).exists()]


def compile_object(name: str, flags: tuple[str, ...], say: Callable[[str], None] = lambda _: None) -> Path:
    """Compile the kernels with the common and these flags, unless cached; the path in the cache."""
    command = compiler()
    result = _cached(name, flags)
    if not result.exists():
        say(f"compiling {name}")
        result.parent.mkdir(parents=True, exist_ok=True)
        partial = result.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [command, *COMMON_FLAGS, *flags, "-o", str(partial), str(HERE / "kernels.cpp")],
            check=True,
            capture_output=True,
            text=True,
        )
        partial.replace(result)
    return result


def _cached(name: str, flags: tuple[str, ...]) -> Path:
    """Path of the object in the cache: keyed by compiler, C library, flags and sources."""
    asked = (_ask(compiler(), "--version"), _ask(compiler(), "-dumpmachine"))
    digest = hashlib.sha256("\0".join((*asked, *platform.libc_ver(), *COMMON_FLAGS, *flags)).encode())
    for source in sorted((*HERE.glob("*.h"), *HERE.glob("*.cpp"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return cache_folder() / "native" / digest.hexdigest()[:16] / name


def _ask(command: str, option: str) -> str:
    return subprocess.run([command, option], check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Build all variants into this file's folder."""
    try:
        for path in build(say=lambda line: print(line, flush=True)):
            print(path)
    except CompilerMissingError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} failed:\n{error.stderr}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
