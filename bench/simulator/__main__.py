"""Compares the simulator's pod with a real one: python -m bench.simulator [--seconds 32]. It takes about six minutes.

Runs one `octavo-server` with the model from its package. Step times are fitted to loads of one kind each, from the sums
of its load report. These loads run before and after each level, because the machine's own speed drifts. Five levels of
Poisson arrivals, with an eighth of the Azure conversation trace's sizes, are replayed on the server. The same requests
run on the simulator's pod. The acceptance criteria: capacity and inter-token time within 10 %, p99 of the time to the
first token within 30 %.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import uvloop

from bench.lib.host import new_report, result_file
from bench.lib.loads import SEED, ids
from bench.lib.plot import BLUE, GREY, plt
from bench.lib.plot import save as save_plot
from bench.lib.results import save
from bench.lib.server import Server
from bench.lib.sse import connect, message
from bench.simulator import calibration as cal
from octavo_protocol.load import LoadReport, decode_load
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import TraceRequest

SLOWDOWN = 1.5
LOADS = (*cal.FITTING, *cal.FEW)
PATIENCE = 120.0


def report(server: Server) -> LoadReport:
    with urlopen(f"http://127.0.0.1:{server.admin}/v1/octavo/load", timeout=10) as answer:
        return decode_load(answer.read())


async def one(server: Server, request: TraceRequest, begin: float, words: random.Random) -> cal.Answer:
    """Send a request at its time."""
    body = message(ids(words, request.prompt), request.output)
    await asyncio.sleep(begin + request.at - time.perf_counter())
    sent = time.perf_counter()
    answer = await connect(server.port, body)
    await answer.done
    if answer.completion_tokens != request.output:
        sys.exit(f"wanted {request.output} tokens, got {answer.completion_tokens}: {answer.tail!r}")
    # Text may be buffered until the next token; the last event always comes with the last token.
    return cal.Answer(answer.times[0] - sent, answer.times[-1] - answer.times[0], request.output)


@dataclass(frozen=True, slots=True)
class Played:
    """Outcome of some requests. `others`: busy cores that neither server nor client used."""

    answers: list[cal.Answer]
    window: cal.Window
    others: float


async def replay(server: Server, requests: list[TraceRequest], words: random.Random) -> Played:
    """Send requests at their times; measure the server's steps meanwhile."""
    before, busy, begin = report(server).steps, others(server), time.perf_counter()
    async with asyncio.timeout(PATIENCE + requests[-1].at):
        answers = await asyncio.gather(*(one(server, request, begin, words) for request in requests))
    wall, after = time.perf_counter() - begin, report(server).steps
    pairs = sum(request.prompt * (request.prompt - 1) // 2 for request in requests)
    window = cal.Window(
        after.count - before.count, after.seconds - before.seconds, after.prefill - before.prefill,
        after.rows - before.rows, after.context - before.context, pairs, wall,
    )  # fmt: skip
    return Played(answers, window, (others(server) - busy) / wall)


def others(server: Server) -> float:
    """CPU seconds of all other processes on the machine so far, and of other virtual machines."""
    times = psutil.cpu_times()
    return (
        sum(times)
        - times.guest
        - times.guest_nice
        - times.idle
        - times.iowait
        - server.cpu_seconds()
        - time.process_time()
    )


async def measure(server: Server, threads: int, seconds: float, shares: tuple[float, ...]) -> dict[str, Any]:
    words = random.Random(time.time_ns())
    await replay(server, [TraceRequest(0.0, 64, 16)] * 8, words)
    state = report(server)
    blank = PodProfile(
        name=f"smollm2-{threads}-threads", base=0.001, prefill=0, row=0, context=0, noise=0, slowdown=SLOWDOWN, gpus=0,
        pool_tokens=state.blocks_total * state.block_size, block_size=state.block_size, max_running=state.max_running,
        budget=state.max_batched_tokens, max_waiting=state.max_waiting,
    )  # fmt: skip
    passes = [await fitting_loads(server, words)]
    highest = cal.highest_rate(fitted(passes, blank))
    levels = []
    for number, share in enumerate(shares):
        requests = cal.arrivals(share * highest, seconds, random.Random(SEED + number))
        played = await replay(server, requests, words)
        passes.append(await fitting_loads(server, words))
        levels.append((fitted(passes[-2:], blank), share * highest, requests, played))
        print(f"{share * highest:.2f} requests/s: {len(requests)} answered", flush=True)
    profile = fitted(passes, blank)
    first, token = cal.alone(profile)
    objectives = (cal.FIRST_TIMES * first, cal.TOKEN_TIMES * token)
    return {
        "profile": asdict(profile),
        "objectives": objectives,
        "fitting": [[{"load": load, "others": play.others} | asdict(play.window)
                     for load, play in zip(LOADS, plays, strict=True)] for plays in passes],
        "levels": [level(objectives, *given) for given in levels],
    }  # fmt: skip


async def fitting_loads(server: Server, words: random.Random) -> list[Played]:
    return [await replay(server, [TraceRequest(0.0, prompt, output)] * count, words) for count, prompt, output in LOADS]


def fitted(passes: list[list[Played]], blank: PodProfile) -> PodProfile:
    """Fit the profile to the windows of all passes, with equal weight."""
    several = [play.window for plays in passes for play in plays[: len(cal.FITTING)]]
    few = [play.window for plays in passes for play in plays[len(cal.FITTING) :]]
    return cal.fit(several, few, blank)


def level(
    objectives: tuple[float, float], profile: PodProfile, rate: float, requests: list[TraceRequest], played: Played
) -> dict[str, Any]:
    """Measured figures, and those of the simulated pod with the step times of the same minutes."""
    answers, busy = cal.simulated(profile, requests)
    return {
        "rate": rate,
        "requests": len(requests),
        "others": round(played.others, 3),
        "profile": asdict(profile),
        "window": asdict(played.window),
        "measured": cal.figures(played.answers, objectives) | {"busy": played.window.seconds},
        "simulated": cal.figures(answers, objectives) | {"busy": busy},
        "answers": [[round(r.at, 4), r.prompt, r.output, round(a.first, 4), round(a.rest, 4)]
                    for r, a in zip(requests, played.answers, strict=True)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--seconds", type=float, default=32, help="arrivals of each level")
    # The other cores are for HTTP and the clients: a simulated pod shares its CPU with no other process.
    parser.add_argument("--threads", type=int, default=max(1, cores // 2))
    parser.add_argument("--levels", type=float, nargs="+", default=cal.LEVELS, help="shares of the highest rate")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/calibration-<date>.json)")
    given = parser.parse_args()
    flags = ["--model", "smollm2", "--threads", str(given.threads), "--kv-memory", "512Mi", "--max-model-len", "2048"]
    server = Server.start([*flags, "--prefill-slowdown", str(SLOWDOWN), "--no-prefix-caching"])
    os.nice(10)  # after the start of the server, which would inherit it
    load = os.getloadavg()[0]
    try:
        server.ready()
        found = uvloop.run(measure(server, given.threads, given.seconds, tuple(given.levels)))
    finally:
        server.stop()
    output = given.output or result_file("calibration")
    save(output, new_report(seed=SEED, flags=flags, load_average_before=load) | found)
    text = cal.table(found["profile"], found["levels"])
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(found["levels"], output.with_suffix(".svg"))
    print(f"\n{text}\n{output}")


_PANELS = (
    ("ms between tokens", ("inter_token",)),
    ("ms to the first token: p99, p50 dashed", ("ttft_p99", "ttft_p50")),
    ("share of requests within SLO", ("attained",)),
)


def plot(levels: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot measured and simulated figures of a pod over the rate of requests."""
    _figure, axes = plt.subplots(1, 3, figsize=(10, 3.2))
    rates = [level["rate"] for level in levels]
    for panel, (title, keys) in zip(axes, _PANELS, strict=True):
        for key, style in zip(keys, ("-", "--"), strict=False):
            for who, color in (("measured", GREY), ("simulated", BLUE)):
                values = [level[who][key] for level in levels]
                panel.plot(rates, values, style, color=color, marker="o", markersize=3, label=who)
        panel.set_title(title)
        panel.set_xlabel("requests per second")
        panel.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    save_plot(path)


if __name__ == "__main__":
    main()
