"""The machine's roofline: python -m bench.cpu.runners.roofline THREADS."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cpu.runners.serve import serve

SOURCE = Path(__file__).with_name("roofline.cpp")


def build(folder: Path) -> tuple[str, Path]:
    """Compile the program into `folder`; the compiler and the program. SystemExit without a compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("no C++ compiler (g++ or clang++): the machine's limits cannot be measured")
    program = folder / "roofline"
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread", "-Wno-psabi"]
    subprocess.run([compiler, *flags, "-o", str(program), str(SOURCE)], check=True)
    return compiler, program


def measure(program: Path, threads: int) -> dict[str, Any]:
    """The machine's limits with so many threads: "read_gb_per_s" and rates of multiply-adds."""
    output = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiler, program = build(Path(folder))
        serve(time.time(), {"compiler": compiler}, {"limits": lambda: measure(program, int(sys.argv[1]))})


if __name__ == "__main__":
    main()
