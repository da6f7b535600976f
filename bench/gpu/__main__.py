"""Checks and measures the GPU's kernels, backend and engine. Every part ends within ten minutes without a network.

    python -m bench.gpu check            # every kernel, then the engine, against references on this machine's GPU
    python -m bench.gpu.first 1          # the first half hour on a card: `first` runs what follows, in order
    python -m bench.gpu load             # one measurement; `python -m bench.gpu --help` lists them
    python -m bench.gpu compile          # every kernel for the supported cards, no GPU needed; a table next to the JSON
    python -m bench.gpu report DIR       # tables of the JSON files in a folder

Results are JSON files in bench/results/gpu, or at --out. A file is written after every row, and the next call continues
after its last row. A failed row is in the file with its traceback, and the other rows continue. With --interpret, check
and the measurements run at tiny sizes on the CPU: this tests the program, and its figures mean nothing. bench/README.md
lists the required packages. Exit status: 0 all is well, 1 something failed, 75 work is left.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

from bench.lib.host import RESULTS

CAPABILITIES = (80, 89, 90, 100)
EXPERIMENTS = {
    "facts": "versions, driver, tools and room of this machine",
    "check": "every kernel and the engine against references",
    "load": "nano-vllm's load through the engine: tok/s beside the ceiling, GPU idle share, step and host times",
    "decode": "decode steps of 1 to 256 sequences against the bytes they must read, by format and context",
    "adapters": "decode steps of 64 sequences with 1, 8 and 64 adapters against steps without",
    "ttft": "time to the first token against the prompt's length",
    "anchors": "torch's attention and products at the shapes of our kernels",
    "formats": "products of 1 to 2,048 rows by each format of weights",
    "launches": "the host's time per step, kernel by kernel and as a graph",
    "tiles": "the table of tiles of this card: every product by each tile that may be the best",
    "expert_tiles": "products of experts by each tile that may be the best",
    "timeline": "some decode steps, host and device, to be drawn",
    "start": "from the start of octavo-server to ready, kernels compiled before or not",
    "peer": "vLLM on nano-vllm's load, where it is installed",
}


def main() -> None:
    given = arguments()
    # Compiled kernels are cached by content, shared between clones.
    cache = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "triton"
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache))
    os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")
    os.environ["TRITON_INTERPRET"] = "1" if getattr(given, "interpret", False) else "0"
    # The backend's log lines about graphs and memory belong in a job's log.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # SIGTERM also ends the child processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from bench.gpu import commands  # noqa: PLC0415  Triton reads these variables when it is imported

    sys.exit(commands.run(given))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in EXPERIMENTS.items():
        command = commands.add_parser(name, help=words)
        command.add_argument(
            "--out", type=Path, default=RESULTS / "gpu" / f"{name}.json", help="result file (default: %(default)s)"
        )
        command.add_argument("--model", nargs="+", default=[], help="qwen3-0.6b, llama-8b, qwen3-14b (default: all)")
        command.add_argument(
            "--only",
            nargs="+",
            default=[],
            metavar="NAME",
            help="check and tiles: these kernels; else rows with these words",
        )
        command.add_argument("--quick", action="store_true", help="check: few cases of each kernel, as in the tests")
        command.add_argument(
            "--part", choices=("kernels", "engine", "soak"), help="check: only this part (default: all)"
        )
        command.add_argument(
            "--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs that share the model"
        )
        _add_limits(command)
    command = commands.add_parser("compile", help="compile every kernel for GPUs that are not here")
    command.add_argument(
        "--capability", type=int, nargs="+", default=list(CAPABILITIES), metavar="CC",
        help="90 is 9.0 (default: 80 89 90 100; also 86 and 120)",
    )  # fmt: skip
    command.add_argument(
        "--shard", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every Nth case, from the Ith"
    )
    command.add_argument("--quick", action="store_true", help="few cases of each kernel, as in the tests")
    command.add_argument("--only", nargs="+", default=[], metavar="KERNEL", help="these kernels")
    command.add_argument("--out", type=Path, help="result file (JSON), with a table next to it")
    command = commands.add_parser("report", help="tables of a folder of result files")
    command.add_argument("folder", type=Path)
    return parser.parse_args()


def _add_limits(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seconds", type=float, default=540, help="stop then, and leave the rest for the next call")
    command.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU, by Triton's interpreter")
    command.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="for large files, 16 GB of a model each"
    )


if __name__ == "__main__":
    main()
