"""Compares public load tools with our own clients: python -m bench.tools [--quick] [--only NAME ...].

One `octavo-server` answers. Within a round the tools and `octavo-server bench` take turns, our client before and after
each, because the machine's own speed drifts: the same number of requests, as many at once or a second, the same prompts
(`octavo-server bench` makes its own), as many tokens out, greedy. The acceptance criterion: tools agree with our client
to 3 % in the figures that a load is judged by: output tokens per second, mean time to first token, mean time between
tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from bench.lib.host import new_report, result_file
from bench.lib.processes import last, log_file
from bench.lib.results import Row, save
from bench.lib.server import Server
from bench.tools import own
from bench.tools.environments import programs
from bench.tools.load import Figures, Hub, Target, ToolLoad, texts
from bench.tools.report import ENGINE, OWN, table
from bench.tools.table import TOOLS, LoadTool, run
from octavo_inference.tokenizer.assets import load_assets

# Long prompts where the time to first token counts: what a client adds, some milliseconds, is little of it.
LOADS = (
    ToolLoad(6, 1, 1536, 128),
    ToolLoad(24, 4, 256, 128),
    ToolLoad(64, 16, 128, 128),
    ToolLoad(12, 0, 1536, 128, rate=0.3),
)
QUICK = (ToolLoad(2, 1, 32, 16), ToolLoad(4, 2, 32, 16), ToolLoad(3, 0, 32, 16, rate=1.0))
# Half of the cores compute; HTTP and the clients have the others. Without the prefix cache every prompt is computed.
FLAGS = ("--model", "smollm2", "--kv-memory", "512Mi", "--max-model-len", "2048")
SERVER_FLAGS = ("--no-prefix-caching",)
Way = Callable[[ToolLoad], Figures]


def main() -> None:
    given = arguments()
    tools, left_out = installed(given.only)
    flags = [*FLAGS, "--threads", str(given.threads)]
    loads = prompted(QUICK if given.quick else LOADS)
    load_average = os.getloadavg()
    server_log = log_file("tools-server")
    with server_log.open("wb") as log, tempfile.TemporaryDirectory(prefix="octavo-tools-") as folder:
        server = Server.start([*flags, *SERVER_FLAGS], output=log)
        os.nice(10)  # after the start of the server, which would inherit it
        try:
            server.ready()
            target = Target(f"http://127.0.0.1:{server.port}", "bench", "none")
            clients: dict[str, Way] = {OWN: partial(over_http, target)}
            clients |= {tool.name: partial(with_tool, tool, path, target, Path(folder)) for tool, path in tools.items()}
            ways = {name: partial(counted, way, server.admin) for name, way in clients.items()}
            ways[ENGINE] = partial(own.in_process, flags=flags)
            rows = list(measured(ways, loads, 1 if given.quick else given.rounds))
        finally:
            server.stop()
    report = new_report(
        quick=given.quick, flags=[*flags, *SERVER_FLAGS], load_average=load_average, left_out=left_out, rows=rows,
        loads=[{"name": load.name, "judged": load.judged} | asdict(load) | {"prompts": None} for load in loads],
    )  # fmt: skip
    publish(report, given.output)
    if failed := [row for row in rows if "error" in row]:
        sys.exit(f"{len(failed)} runs failed; the server's log ends: {last(server_log)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [tool.name for tool in TOOLS if tool.prompts]
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TOOL", help=", ".join(names))
    parser.add_argument("--threads", type=int, default=max(1, cores // 2), help="of the engine (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="to see that it works: a minute, no result")
    parser.add_argument("--output", type=Path, default=result_file("tools"), help="result file")
    return parser.parse_args()


def installed(names: Sequence[str]) -> tuple[dict[LoadTool, Path], dict[str, str]]:
    """The tools with the folders of their programs; and why others are left out."""
    found: dict[LoadTool, Path] = {}
    left_out = {}
    for tool in TOOLS:
        if tool.name in names:
            try:
                found[tool] = programs(tool.name)
            except RuntimeError as error:
                left_out[tool.name] = str(error)
                print(f"{tool.name} is left out: {error}", flush=True)
    return found, left_out


def prompted(loads: Sequence[ToolLoad]) -> list[ToolLoad]:
    """The loads with their prompts."""
    tokenizer = load_assets("smollm2").tokenizer
    return [replace(load, prompts=texts(tokenizer, load.requests, load.prompt_tokens)) for load in loads]


def over_http(target: Target, load: ToolLoad) -> Figures:
    """Our client."""
    return asyncio.run(own.over_http(target, load))


def with_tool(tool: LoadTool, path: Path, target: Target, folder: Path, load: ToolLoad) -> Figures:
    """A tool, whose files go into a new folder."""
    return run(tool, path, target, load, Hub(folder / "cache").write(), Path(tempfile.mkdtemp(dir=folder)))


def counted(way: Way, admin: int, load: ToolLoad) -> Figures:
    """A client's figures. RuntimeError if the server has not computed the tokens that were asked for, and no others."""
    before = tokens_of(admin)
    found = way(load)
    computed = [now - then for now, then in zip(tokens_of(admin), before, strict=True)]
    if computed != [load.requests * load.prompt_tokens, load.tokens]:
        raise RuntimeError(f"the server computed {computed} prompt and output tokens, not those of the load")
    return found


def tokens_of(admin: int) -> list[float]:
    """Prompt and output tokens of the server so far."""
    with urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    names = ("octavo:prompt_tokens_total{", "octavo:generation_tokens_total{")
    return [sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)) for name in names]


def measured(ways: Mapping[str, Way], loads: Sequence[ToolLoad], rounds: int) -> Iterator[Row]:
    """A row for each load, round and way, with one of our client before and after each other. An error is a row too."""
    for load in loads:
        ways[OWN](load)  # a warm-up
        others = [name for name in ways if name != OWN and not (name == ENGINE and load.rate)]  # it sends batches
        for number in range(rounds):
            for name in [OWN, *(part for other in others for part in (other, OWN))]:
                row = {"load": load.name, "round": number, "way": name} | one(ways[name], load)
                say(row)
                yield row


def say(row: Row) -> None:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))
    print(f"{row['load']:36} {row['round']} {row['way']:20} {row.get('error', figures)}", flush=True)


def one(way: Way, load: ToolLoad) -> Row:
    """The figures of a run, and the CPU seconds of its client; or the error."""
    before = client_seconds()
    try:
        found = way(load)
    except (RuntimeError, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if (found.completed, found.failed, found.tokens) != (load.requests, 0, load.tokens):
        return {"error": f"not the load that was asked for: {found}"}
    return asdict(found) | {"client_cpu_s": round(client_seconds() - before, 2)}


def client_seconds() -> float:
    """CPU seconds of this process and of the tools that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def publish(report: Row, output: Path) -> None:
    """Write the result file and its table."""
    save(output, report)
    text = table(report)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{output}")


if __name__ == "__main__":
    main()
