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


def main() -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("no C++ compiler (g++ or clang++): the machine's limits cannot be measured")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "roofline")
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread", "-Wno-psabi"]
        subprocess.run([compiler, *flags, "-o", program, str(SOURCE)], check=True)

        def limits() -> dict[str, Any]:
            output = subprocess.run([program, sys.argv[1]], check=True, capture_output=True, text=True).stdout
            result: dict[str, Any] = json.loads(output)
            return result

        serve(time.time(), {"compiler": compiler}, {"limits": limits})


if __name__ == "__main__":
    main()
