"""`octavo-server` over HTTP: python -m bench.cpu.runners.octavo_http [start] [FLAG ...], the server's flags.

The client is a process of its own with lower priority than the server (nice), and its CPU seconds are reported next to
the server's. With `start`, each measurement starts and stops a server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from statistics import median
from typing import Any

STARTED = time.time()

import uvloop  # noqa: E402 (the clock starts before anything that takes long is imported)

from bench.cpu.runners.latency import slowdown  # noqa: E402
from bench.cpu.runners.serve import Command, serve  # noqa: E402
from bench.lib.loads import SEED, ids, load  # noqa: E402
from bench.lib.server import Server  # noqa: E402
from bench.lib.sse import Answer, connect, message  # noqa: E402

CONCURRENCY = 64
PATIENCE = 600.0


async def run_load(server: Server, name: str) -> dict[str, Any]:
    """Send the load's requests, at most 64 concurrently."""
    work = load(name)
    bodies = [message(p, n) for p, n in zip(work.prompts, work.output_lengths, strict=True)]
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(body: bytes) -> Answer:
        async with room:
            answer = await connect(server.port, body)
            await answer.done
            return answer

    before, own = server.cpu_seconds(), time.process_time()
    begin = time.perf_counter()
    answers = await asyncio.gather(*map(one, bodies))
    seconds = time.perf_counter() - begin
    produced = [answer.completion_tokens for answer in answers]
    if produced != work.output_lengths:
        sys.exit(f"{name}: wanted {work.output_lengths} tokens, got {produced}")
    return {
        "tokens": work.tokens,
        "seconds": round(seconds, 4),
        "cpu_seconds": round(server.cpu_seconds() - before, 3),
        "events": sum(len(answer.times) for answer in answers),
        "client_cpu_seconds": round(time.process_time() - own, 3),
        "first_token_ms": round(1e3 * median(answer.times[0] - begin for answer in answers), 1),
    }


async def arrival(server: Server, streams: int, prompt: int, quiet_tokens: int) -> dict[str, Any]:
    """The measurement of `latency.arrival`, seen from the client."""
    rng = random.Random(SEED)
    running = [await connect(server.port, message(ids(rng, 128), 6000)) for _ in range(streams)]

    async def until(tokens: int) -> None:
        while min(len(answer.times) for answer in running) < tokens:
            if any(answer.done.done() for answer in running):
                sys.exit(f"a stream ended early: {running[0].tail!r}")
            await asyncio.sleep(0.02)

    await until(5)
    first = min(len(answer.times) for answer in running)
    await until(first + quiet_tokens)
    begin = time.perf_counter()
    long = await connect(server.port, message(ids(rng, prompt), 1))
    await long.done
    end = time.perf_counter()
    for answer in running:
        answer.stop()
    times = [answer.times[4:] for answer in running]
    gaps = [(later, later - earlier) for one in times for earlier, later in itertools.pairwise(one)]
    quiet, busy = ([gap for at, gap in gaps if a <= at < b] for a, b in ((0.0, begin), (begin, end)))
    return slowdown(quiet, busy, end - begin)


async def idle(server: Server, seconds: int, requests: int) -> dict[str, Any]:
    """CPU share while idle, and growth of RSS over short requests (after as many warm-up requests, at most 200)."""
    rng = random.Random(time.time_ns())

    async def soak(count: int) -> None:
        room = asyncio.Semaphore(CONCURRENCY)

        async def one() -> None:
            async with room:
                await (await connect(server.port, message(ids(rng, 16), 4))).done

        await asyncio.gather(*(one() for _ in range(count)))

    await soak(min(requests, 200))
    await asyncio.sleep(1)
    before, began = server.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (server.cpu_seconds() - before) / (time.perf_counter() - began)
    resident = server.resident()
    await soak(requests)
    growth = server.resident() - resident
    return {
        "cpu_percent": round(100 * share, 2),
        "resident_mb": round(resident / 1e6, 1),
        "growth_mb": round(growth / 1e6, 2),
        "requests": requests,
    }


def first_token(flags: list[str]) -> dict[str, Any]:
    """Seconds from a server's start until a client receives the first token."""
    begin = time.perf_counter()
    server = Server.start(flags)
    try:
        server.ready()
        ready = time.perf_counter() - begin
        uvloop.run(run_one(server))
        seconds = time.perf_counter() - begin
        return {"seconds": round(seconds, 3), "ready_s": round(ready, 3), "cpu_seconds": server.cpu_seconds()}
    finally:
        server.stop()


async def run_one(server: Server) -> None:
    """Request one token."""
    answer = await connect(server.port, message([1], 1))
    await answer.done
    if answer.completion_tokens != 1:
        sys.exit(f"no first token: {answer.tail!r}")


def main() -> None:
    versions = {"octavo": version("octavo")}
    if sys.argv[1] == "start":
        serve(STARTED, versions, {"start": lambda: first_token(sys.argv[2:])})
        return
    server = Server.start(sys.argv[1:])
    os.nice(10)  # after the start of the server, which would inherit it
    server.ready()

    def command(run: Callable[..., Coroutine[Any, Any, dict[str, Any]]], kind: type = int) -> Command:
        async def bounded(*given: str) -> dict[str, Any]:
            async with asyncio.timeout(PATIENCE):
                return await run(server, *map(kind, given))

        return lambda *given: uvloop.run(bounded(*given))

    try:
        serve(STARTED, versions, {"load": command(run_load, str), "arrival": command(arrival), "idle": command(idle)})
    finally:
        server.stop()


if __name__ == "__main__":
    main()
