"""The server's cost of gateways polling cache changes: python -m bench.cpu.polling [--rounds 5].

One server runs a load of random prompts over HTTP, alternately with eight gateways that poll once a second and without.
The pool is small, so that blocks are cached and evicted all the time. Rates are per second of elapsed time and per
second of the engine's CPU time, which a busy machine affects less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.lib.host import new_report, result_file
from bench.lib.loads import SEED, ids
from bench.lib.results import save
from bench.lib.server import Server
from bench.lib.sse import connect, message
from octavo_protocol.load import decode_load


async def poll(server: Server, told: list[int]) -> None:
    """One gateway: fetches the load report with the changes, once a second, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.admin)
    sequence = 0
    try:
        while True:
            writer.write(f"GET /v1/octavo/load?cache_after={sequence} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            delta = decode_load(await reader.readexactly(size)).cache
            if delta is None:
                sys.exit("the server does not tell of its cache")
            sequence = delta.sequence
            told.append((len(delta.added) + len(delta.removed)) // 8)
            await asyncio.sleep(1)
    finally:
        writer.close()


async def turn(server: Server, number: int, requests: int, gateways: int) -> dict[str, Any]:
    """One load: the lengths of its round, with prompts that were never sent before."""
    lengths, words = random.Random(SEED + number), random.Random(time.time_ns())
    bodies = [message(ids(words, lengths.randint(50, 300)), lengths.randint(50, 150)) for _ in range(requests)]
    told: list[int] = []
    polls = [asyncio.create_task(poll(server, told)) for _ in range(gateways)]
    before, begin = [sum(p.cpu_times()[:2]) for p in server.processes()], time.perf_counter()
    answers = await asyncio.gather(*(connect(server.port, body) for body in bodies))
    await asyncio.gather(*(answer.done for answer in answers))
    seconds = time.perf_counter() - begin
    api, engine = (sum(p.cpu_times()[:2]) - b for p, b in zip(server.processes(), before, strict=True))
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    tokens = sum(answer.completion_tokens for answer in answers)
    return {
        "gateways": gateways,
        "tokens_per_second": round(tokens / seconds, 1),
        "tokens_per_engine_cpu_second": round(tokens / engine, 1),
        "api_cpu_seconds": round(api, 3),
        "seconds": round(seconds, 2),
        "polls": len(told),
        "blocks_told": sum(told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/polling-<date>.json)")
    given = parser.parse_args()
    server = Server.start(["--model", "smollm2", "--threads", str(given.threads), "--kv-memory", "96Mi"])
    os.nice(10)  # after the start of the server, which would inherit it
    turns = []
    try:
        server.ready()
        uvloop.run(turn(server, -1, 8, 1))
        for number in range(given.rounds):
            for gateways in (0, given.gateways) if number % 2 else (given.gateways, 0):
                turns.append({"round": number} | uvloop.run(turn(server, number, given.requests, gateways)))
                print(turns[-1], flush=True)
    finally:
        server.stop()
    ratios = {}
    for figure in ("tokens_per_second", "tokens_per_engine_cpu_second"):
        by_turn = {(t["round"], t["gateways"] > 0): t[figure] for t in turns}
        each = [by_turn[number, True] / by_turn[number, False] for number in range(given.rounds)]
        ratios[figure] = {"median": round(statistics.median(each), 3), "rounds": [round(r, 3) for r in each]}
    report = new_report(threads=given.threads, ratios=ratios, turns=turns)
    save(given.output or result_file("polling"), report)
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
