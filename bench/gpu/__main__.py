"""The GPU's kernels, backend and engine, proven and measured. Every part ends within ten minutes and needs no network.

    python bench/gpu compile             # every kernel for the cards we name, no GPU needed; a table beside the JSON
    python bench/gpu check --out FILE    # every kernel, then the engine, against references on this machine's GPU
    python bench/gpu all --out DIR       # check, then all measurements, and a report: call it until it says "complete"
    python bench/gpu load --out FILE     # one measurement; `python bench/gpu --help` lists them
    python bench/gpu report DIR          # tables and plots of the JSON files in a folder

With --interpret, check and the measurements run at tiny sizes on the CPU: that proves the program, its figures mean
nothing. A measurement writes its file after every row and goes on with it when it is called again.

Needs what bench/README.md lists, and Octavo's inference part (PYTHONPATH=protocol:inference where it is not installed);
matplotlib for the plots. What fails is in the JSON with its traceback, and the rest goes on.
Exit status: 0 all is well, 1 something failed, 75 there is more to do.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from files import INCOMPLETE, LOST, read, save

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from host import host  # noqa: E402  beside this folder

RESULTS = HERE.parent / "results"
CAPABILITIES = (80, 89, 90, 100)
PARTS = {
    "load": "nano-vllm's load through the engine: tok/s beside the ceiling, GPU idle share, step and host times",
    "decode": "decode steps of 1 to 256 sequences against the bytes they must read, by format and context",
    "kernels": "each kernel at decode and prefill shapes: time, share of bandwidth and of FLOP/s",
    "ttft": "time to the first token against the prompt's length",
    "ablation": "one load with and without each technique, in turns",
    "tiles": "the table of tiles of this card: every product by each tile that may be the best",
    "timeline": "some decode steps, host and device, to be drawn",
    "start": "from the start of octavo-server to ready, kernels compiled before or not",
    "peer": "other engines on nano-vllm's load, where they are installed",
}


def main() -> None:
    given = arguments()
    # Compiled kernels are kept by content, between clones.
    cache = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "triton"
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache))
    os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")
    # Triton reads this when it is imported, which is why the rest of this program is imported late.
    os.environ["TRITON_INTERPRET"] = "1" if getattr(given, "interpret", False) else "0"
    # What the backend says of graphs and memory belongs into a job's log.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(COMMANDS.get(given.command, run_part)(given))


def run_check(given: argparse.Namespace) -> int:
    """`check` and `compile`: exit status."""
    began = time.monotonic()
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    report |= check_all(given) if given.command == "check" else compile_all(given)
    report["seconds"] = round(time.monotonic() - began, 1)
    rows = [row for part in ("kernels", "engine") for row in report.get(part, [])]
    bad = [row for row in rows if row["verdict"] not in {"ok", "compiled", "refused"}]
    write(given.out, report | {"complete": True})
    print(f"{len(rows) - len(bad)} of {len(rows)} good in {report['seconds']} s{f', {given.out}' if given.out else ''}")
    return 1 if bad or not rows else 0


def write(out: Path | None, report: dict[str, Any]) -> None:
    """To a result file, where one was asked for."""
    if out is not None:
        save(out, report)


def run_ahead(given: argparse.Namespace) -> int:
    """Into the cache that all other commands read."""
    import ahead  # noqa: PLC0415  see main

    wanted = ahead.jobs(given.capability or own_capability())
    return 0 if ahead.compile_ahead(Path(os.environ["TRITON_CACHE_DIR"]), wanted, given.out, say) else 1


def run_part(given: argparse.Namespace) -> int:
    """A measurement."""
    from measuring import measure  # noqa: PLC0415  see main

    complete = measure(given, {"host": host() | {"gpu": gpu()}, "versions": versions()}, say)
    if complete and given.command == "tiles":
        write_tiles(given.out)
    return 0 if complete else INCOMPLETE


def write_tiles(out: Path) -> None:
    """The table that the server reads, of the rows that are there."""
    try:
        from parts.tiles import write_table  # noqa: PLC0415  see main
    except ImportError as error:
        say(f"no table of tiles: {error}")
        return
    say(f"{write_table(out)} written: backends/cuda/kernels/tables is where the server looks for it")


def run_everything(given: argparse.Namespace) -> int:
    """All measurements and their report."""
    from everything import JOBS, SHORTEST, UNTIMED, run_all  # noqa: PLC0415  see main
    from needs import missing  # noqa: PLC0415

    if given.seconds < SHORTEST:
        sys.exit(f"--seconds is {given.seconds:.0f}: give at least {SHORTEST:.0f}, a call with less begins nothing")
    # An interpreter has nothing compiled.
    wanted = [job for job in JOBS if not (given.interpret and job.name == "ahead")]
    absent = missing(wanted, compiles=not given.interpret)
    for what, names in absent.items():
        say(f"left out for want of something: {', '.join(names)}: {what} (bench/README.md says what to install)")
    left_out = {name for names in absent.values() for name in names}
    large = ("--folder", str(given.folder))
    jobs = [
        job if job.arguments[0] in UNTIMED else replace(job, arguments=job.arguments + large)
        for job in wanted
        if job.name not in left_out
    ]
    flags = ["--interpret"] if given.interpret else []
    status = run_all(given.out, given.seconds, given.archive, flags, say, jobs)
    write_report_of(given.out, given.archive)
    return status or (1 if left_out else 0)


def run_report(given: argparse.Namespace) -> int:
    """Of what is in a folder."""
    write_report_of(given.folder, None)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "compile": run_check,
    "check": run_check,
    "ahead": run_ahead,
    "all": run_everything,
    "report": run_report,
}
"""What runs each command, and gives its exit status; all others are `PARTS`."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("compile", help="compile every kernel for GPUs that are not here")
    one.add_argument(
        "--capability", type=int, nargs="+", default=list(CAPABILITIES), metavar="CC",
        help="90 is 9.0 (default: 80 89 90 100; also 86 and 120)",
    )  # fmt: skip
    one.add_argument(
        "--shard", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every Nth case, from the Ith"
    )
    other = commands.add_parser("check", help="run every kernel and the engine against references")
    other.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU, by Triton's interpreter")
    other.add_argument("--part", choices=("kernels", "engine"), help="only this one (default: both)")
    for command in (one, other):
        command.add_argument("--quick", action="store_true", help="few cases of each kernel, as in the tests")
        command.add_argument("--only", nargs="+", default=[], metavar="KERNEL", help="these kernels")
        command.add_argument("--out", type=Path, help="result file (JSON)")
    for name, words in PARTS.items():
        command = commands.add_parser(name, help=words)
        command.add_argument("--out", type=Path, required=True, help="result file (JSON); gone on with where it exists")
        command.add_argument("--model", nargs="+", default=[], help="qwen3-0.6b, llama-8b, qwen3-14b (default: all)")
        command.add_argument(
            "--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs that share the model"
        )
        _add_limits(command)
    command = commands.add_parser("ahead", help="compile the engines' kernels on all cores; needs no GPU")
    command.add_argument("--capability", type=capability, metavar="X.Y", help="9.0 is an H100 (default: this GPU's)")
    command.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    command = commands.add_parser("all", help="check and all measurements, each in a process with its limit; a report")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of result files")
    command.add_argument("--archive", type=Path, help="after each part, pack all result files into this .tar.gz, too")
    _add_limits(command)
    command = commands.add_parser("report", help="tables and plots of a folder of result files")
    command.add_argument("folder", type=Path)
    return parser.parse_args()


def capability(text: str) -> tuple[int, int]:
    """As a person writes it: 9.0."""
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def own_capability() -> tuple[int, int]:
    """Of this machine's GPU. SystemExit where there is none."""
    import torch  # noqa: PLC0415  see main

    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU: name the card's --capability")
    return torch.cuda.get_device_capability()


def _add_limits(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seconds", type=float, default=540, help="stop then, and leave the rest for the next call")
    command.add_argument("--interpret", action="store_true", help="tiny sizes on the CPU, by Triton's interpreter")
    command.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="for large files, 16 GB of a model each"
    )


def compile_all(given: argparse.Namespace) -> dict[str, Any]:
    from cases import chosen  # noqa: PLC0415  see main
    from compiling import STACK_BOUND, compile_cases, table  # noqa: PLC0415
    from null_gpu import SHARED_KIB  # noqa: PLC0415

    if unknown := set(given.capability) - set(SHARED_KIB):
        sys.exit(f"compute capability {sorted(unknown)} is not one of {sorted(SHARED_KIB)}")
    cases = chosen(given.only, quick=given.quick)[given.shard[0] :: given.shard[1]]
    rows = compile_cases(cases, given.capability, say)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    return {"versions": versions(), "stack_bound": STACK_BOUND, "kernels": rows}


def check_all(given: argparse.Namespace) -> dict[str, Any]:
    import torch  # noqa: PLC0415  see main

    if not given.interpret and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU: run this on a machine that has one, or with --interpret on the CPU")
    from case import Place  # noqa: PLC0415
    from cases import chosen  # noqa: PLC0415
    from checking import check_cases  # noqa: PLC0415
    from engine import check_engine  # noqa: PLC0415
    from models import SHAPES  # noqa: PLC0415

    from octavo_inference.backends.cuda.device import find_device  # noqa: PLC0415

    device = torch.device("cpu" if given.interpret else "cuda")
    dtype = torch.float32 if given.interpret else torch.bfloat16
    if not given.interpret:
        torch.cuda.set_device(0)
        torch.backends.cuda.matmul.allow_tf32 = False  # or the references would not be in float32
    report: dict[str, Any] = {"host": host(), "gpu": gpu(), "versions": versions(), "interpreted": given.interpret}
    say(f"{report['gpu'] or 'no GPU: interpreted on the CPU'}; {report['versions']}")
    place = Place(device, dtype, tiny=given.interpret)
    before = gone_on_with(given.out, report)

    def keep(name: str, rows: Iterable[dict[str, Any]]) -> None:
        report[name] = before.get(name, [])
        for row in rows:
            report[name].append(row)
            write(given.out, report | {"complete": False})  # a kill loses one row
            if row["verdict"] == "failed" and not given.interpret:
                end_if_lost(torch.cuda.synchronize)

    if given.part != "engine":
        done = {(row["kernel"], row["variant"]) for row in before.get("kernels", [])}
        cases = [case for case in chosen(given.only, quick=given.quick) if (case.kernel, case.variant) not in done]
        if cases and not given.interpret:
            compile_ahead(given)
        keep("kernels", check_cases(cases, place, say))
    if given.part != "kernels" and not given.only:
        models = [name for name in SHAPES if name not in {row["model"] for row in before.get("engine", [])}]
        keep("engine", check_engine(models, interpret=given.interpret, dtype=dtype, device=find_device(), say=say))
    return report


def gone_on_with(out: Path | None, report: dict[str, Any]) -> dict[str, Any]:
    """The file of a check that was ended early on this card; nothing where there is none."""
    found = None if out is None else read(out)
    alike = found is not None and all(found.get(name) == report[name] for name in ("gpu", "versions", "interpreted"))
    return found if found is not None and alike and not found.get("complete") else {}


def end_if_lost(alive: Callable[[], object]) -> None:
    """SystemExit when the GPU stays failed: all later cases would fail for the one that broke it."""
    try:
        alive()
    except Exception as error:
        say(f"the GPU stays failed ({error}): another process must go on")
        raise SystemExit(LOST) from error


def write_report_of(folder: Path, archive: Path | None) -> None:
    """Tables, plots where matplotlib is installed, and the card's tiles as far as measured; packed once more."""
    from everything import pack  # noqa: PLC0415
    from tables import write_report  # noqa: PLC0415

    if (read(folder / "tiles.json") or {}).get("rows"):
        write_tiles(folder / "tiles.json")
    say(f"{write_report(folder)} written")
    if archive is not None:
        pack(folder, archive)


def compile_ahead(given: argparse.Namespace) -> None:
    """Into the cache, on all cores: at a launch kernels compile one after the other.

    What does not compile is found again when it is launched, and told there.
    """
    import torch  # noqa: PLC0415  see main

    major, minor = torch.cuda.get_device_capability()
    count = len(os.sched_getaffinity(0))
    only = ["--only", *given.only] if given.only else []
    only += ["--quick"] if given.quick else []
    command = [sys.executable, str(HERE), "compile", "--capability", str(10 * major + minor), *only, "--shard"]
    say(f"compiling on {count} cores")
    running = [subprocess.Popen([*command, str(i), str(count)], stdout=subprocess.DEVNULL) for i in range(count)]
    for process in running:
        process.wait()


def gpu() -> dict[str, Any] | None:
    """The card and its driver, None where there is none."""
    import torch  # noqa: PLC0415  see main

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
    """As nvidia-smi says it."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: nvidia-smi is not on PATH"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else f"unknown: {found.stdout.strip() or found.stderr.strip()}"


def versions() -> dict[str, str]:
    import torch  # noqa: PLC0415  see main
    import triton  # noqa: PLC0415

    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "triton": triton.__version__}


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
