"""The commands of `python -m bench.gpu`; each returns an exit status."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch
import triton

from bench.gpu.cases import chosen
from bench.gpu.compiling import STACK_BOUND, compile_cases, table
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import DENSE, MODELS
from bench.gpu.null_gpu import SHARED_KIB
from bench.gpu.report import markdown
from bench.gpu.roofline import Rates, data_sheet
from bench.gpu.timing import Events, Timer, Wall, peaks
from bench.lib.host import host
from bench.lib.processes import ROOT
from bench.lib.results import GOOD, INCOMPLETE, opened, read, save, work

TOGETHER = ("load", "decode", "ttft", "timeline", "launches")
"""Experiments that support one engine over several GPUs."""
SELECTING = ("check", "tiles")
"""Experiments for which --only names kernels; for others it selects rows by a part of their name."""


def run(given: argparse.Namespace) -> int:
    """Run a command by its name."""
    return COMMANDS.get(given.command, measure)(given)


def measure(given: argparse.Namespace) -> int:
    """Run an experiment. SystemExit where it cannot run, or when the GPU is lost."""
    if not given.interpret and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU: run this on a machine that has one, or with --interpret on the CPU")
    if unknown := sorted(set(given.model) - set(MODELS)):
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    models = tuple(given.model or DENSE)
    if given.tensor_parallel_size > 1 and (len(models) > 1 or given.command not in TOGETHER):
        sys.exit(f"--tensor-parallel-size is for one --model, and for {', '.join(TOGETHER)}")
    card = gpu()
    name = card["name"] if card else None
    identity = {"part": given.command, "models": list(models), "interpreted": given.interpret}
    identity |= {"ranks": given.tensor_parallel_size, "card": name, "versions": versions()}
    report = opened(given.out, identity) | {"host": host() | {"gpu": card}}
    clock: Timer = Wall() if given.interpret else Events()
    device = torch.device("cpu" if given.interpret else "cuda")
    if "peaks" not in report:
        report["peaks"] = asdict(peaks(clock, device))
    found, sheet = Rates(**report["peaks"]), data_sheet(name) if name else None
    report["data_sheet"] = None if sheet is None else asdict(sheet)
    say(f"{card or 'no GPU: interpreted on the CPU'}; {versions()}; a copy reaches {found.bandwidth / 1e12:.3g} TB/s, "
        f"a bf16 product {found.bf16 / 1e12:.4g} TFLOP/s; {given.seconds:.0f} s for this run")  # fmt: skip
    setting = Setting(
        models, given.interpret, clock, device, found, sheet, given.folder, given.tensor_parallel_size,
        tuple(given.only), given.quick, given.part,
    )  # fmt: skip
    if given.command == "check" and given.part in {None, "kernels"} and not given.interpret and not report["rows"]:
        compile_on_all_cores(given)
    items = import_module(f"bench.gpu.experiments.{given.command}").items(setting)
    if given.only and given.command not in SELECTING:
        items = [item for item in items if any(words in item.key for words in given.only)]
    complete = work(given.out, report, items, given.seconds, say, alive=_alive)
    if given.command == "tiles":
        path = import_module("bench.gpu.experiments.tiles").write_table(given.out)
        say(f"{path} written: backends/cuda/kernels/tables is where the server looks for it")
    bad = sum(row["verdict"] not in GOOD for row in report["rows"])
    say(f"{len(report['rows'])} rows, {bad} bad, {'complete' if complete else 'to be gone on with'}: {given.out}")
    if not complete:
        return INCOMPLETE
    return 1 if given.command == "check" and bad else 0


def _alive() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compile_on_all_cores(given: argparse.Namespace) -> None:
    """Compile the cases' kernels into the cache, in parallel: at launch they compile one after the other.

    A kernel that does not compile fails again at its launch, which reports it.
    """
    major, minor = torch.cuda.get_device_capability()
    count = len(os.sched_getaffinity(0))
    only = ["--only", *given.only] * bool(given.only) + ["--quick"] * given.quick
    command = [sys.executable, "-m", "bench.gpu", "compile", "--capability", str(10 * major + minor), *only, "--shard"]
    say(f"compiling on {count} cores")
    shards = [[*command, str(i), str(count)] for i in range(count)]
    for process in [subprocess.Popen(shard, cwd=ROOT, stdout=subprocess.DEVNULL) for shard in shards]:
        process.wait()


def compile_all(given: argparse.Namespace) -> int:
    """Compile every kernel, for cards that need not be present."""
    if unknown := set(given.capability) - set(SHARED_KIB):
        sys.exit(f"compute capability {sorted(unknown)} is not one of {sorted(SHARED_KIB)}")
    began = time.monotonic()
    cases = chosen(given.only, quick=given.quick)[given.shard[0] :: given.shard[1]]
    rows = compile_cases(cases, given.capability, say)
    bad = sum(row["verdict"] not in GOOD for row in rows)
    if given.out:
        seconds = round(time.monotonic() - began, 1)
        report = {"versions": versions(), "stack_bound": STACK_BOUND, "kernels": rows, "seconds": seconds}
        save(given.out, report | {"complete": True})
        given.out.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    say(f"{len(rows) - bad} of {len(rows)} good")
    return 1 if bad or not rows else 0


def report(given: argparse.Namespace) -> int:
    """Print the tables of a folder of result files."""
    found = {path.stem: result for path in sorted(given.folder.glob("*.json")) if (result := read(path))}
    say(markdown({name: result for name, result in found.items() if "part" in result}))
    return 0


def gpu() -> dict[str, Any] | None:
    """The GPU and its driver, None without one."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": driver_version(),
    }


def driver_version() -> str:
    """Version of the driver, from nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: nvidia-smi is not on PATH"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or f"unknown: {found.stderr.strip()}"


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "triton": triton.__version__}


def say(line: str) -> None:
    print(line, flush=True)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"compile": compile_all, "report": report}
"""Commands that are not experiments."""
