"""Prepares what a machine with a card and without a network needs: python -m bench.gpu.pack.

Run it with the machine's versions of Python, torch and Triton, in an environment of their own: wheels are chosen for
the running Python, and a compiled kernel is found again by the same Triton only. Two folders are the result, below a
folder that git ignores: `wheels`, which `import` needs beyond torch and Triton, and `kernels.tar.gz`. `bench.gpu.first`
uses both, and the files of earlier calls where they are copied there.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from bench.gpu import taken
from bench.gpu.first import SOURCES
from bench.lib.processes import ROOT
from bench.lib.results import save

LIMIT = 64
"""MiB of the repository's files and of what is taken along, together."""
PROGRAMS = (
    "octavo_inference.llm", "bench.gpu.commands", "bench.gpu.experiments.start", "octavo_inference.__main__",
    "octavo_inference.server.application", "uvicorn.protocols.http.httptools_impl", "uvicorn.loops.uvloop",
)  # fmt: skip
"""Modules that the calls import: the engine, the measurements, and the server for its start."""
# What these import, beyond what torch and Triton bring: file names, which tell the wheel that each came from.
_PROBE = """
import importlib, sys
import numpy, torch, triton
there = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{name.partition(".")[0] for name in set(sys.modules) - there})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--out", type=Path, default=ROOT / "build" / "card", metavar="DIR", help="folder to fill (default: %(default)s)"
    )
    add("--capability", type=int, default=90, metavar="CC", help="compute capability of the card: 90 is 9.0")
    add("--requirements", type=Path, default=ROOT / "requirements" / "cpu.txt", help="pinned packages of the server")
    add("--only", choices=("wheels", "kernels"), help="only this part")
    add("--jobs", nargs="+", default=[], metavar="KIND", help="kernels of these jobs only: check engine model tiles")
    add("--limit", type=int, default=LIMIT, metavar="MIB", help="most that may be taken along (default: %(default)s)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.only != "kernels":
        wheels(given.requirements, given.out / "wheels")
    if given.only != "wheels":
        kernels(given.out, given.capability, given.jobs)
    versions = {"python": platform.python_version(), "torch": version("torch"), "triton": version("triton")}
    save(given.out / "manifest.json", {"versions": versions, "capability": given.capability})
    size, tree = folder_size(given.out), tree_size()
    say(f"{size / 2**20:.1f} MiB in {given.out}, and {tree / 2**20:.1f} MiB of the repository's files")
    if size + tree > given.limit << 20:
        sys.exit(f"that is more than {given.limit} MiB: leave out kernels (--jobs), or raise --limit")


def wheels(requirements: Path, target: Path) -> None:
    """Download the pinned packages, and keep the wheels that `PROGRAMS` import. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        every, site = Path(scratch, "wheels"), Path(scratch, "site")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest",
             str(every), "--requirement", str(requirements)], check=True,
        )  # fmt: skip
        for wheel in every.glob("numpy-*"):  # torch brings its own
            wheel.unlink()
        for wheel in every.glob("*.whl"):
            taken.unpack_wheel(wheel, site)
        imported = probe(PROGRAMS, [*(str(ROOT / name) for name in SOURCES), str(ROOT), str(site)])
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        kept = [wheel for wheel in sorted(every.glob("*.whl")) if taken.modules_of(wheel) & imported]
        for wheel in kept:
            shutil.copy(wheel, target)
    say(f"{len(kept)} wheels: {', '.join(wheel.name.split('-')[0] for wheel in kept)}")


def probe(programs: Sequence[str], paths: Sequence[str]) -> set[str]:
    """Top-level modules that these import from the paths. Raises CalledProcessError where one cannot be imported."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *programs], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def kernels(out: Path, capability: int, only: Sequence[str]) -> None:
    """Compile all kernels on all cores, and pack them."""
    from bench.gpu.ahead import jobs  # noqa: PLC0415  imports torch

    began, cores = time.monotonic(), len(os.sched_getaffinity(0))
    cache = out / "kernels"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        # Launchers link with the driver, which is not here: a library of its name stands in. It defines one of the
        # functions that they call, because some linkers drop a library without any, and then no launcher loads.
        stub = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", f"{scratch}/libcuda.so.1", "-xc", "-"]
        subprocess.run(stub, input="int cuCtxGetCurrent(void **context) { return !context; }", text=True, check=True)
        paths = os.pathsep.join([*(str(ROOT / name) for name in SOURCES), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"TRITON_CACHE_DIR": str(cache), "TRITON_STORE_BINARY_ONLY": "1", "PYTHONPATH": paths}
        env |= {"TRITON_LIBCUDA_PATH": scratch, "LD_LIBRARY_PATH": scratch, "TRITON_INTERPRET": "0"}

        def run(job: tuple[str, ...]) -> None:
            command = [sys.executable, "-m", "bench.gpu.ahead", str(capability), *job]
            done = subprocess.run(command, env=env, cwd=ROOT, check=False, capture_output=True, text=True)
            say(done.stdout.strip() if done.returncode == 0 else f"{' '.join(job)}: {done.stderr.strip()[-500:]}")

        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(run, [job for job in jobs(cores) if not only or job[0] in only]))
    taken.trim(cache)
    taken.archive(out / "kernels.tar.gz", cache)
    say(f"{taken.count(cache)} kernels in {time.monotonic() - began:.0f} s")
    shutil.rmtree(cache)


def folder_size(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def tree_size() -> int:
    """Bytes of the files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).is_file())


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
