"""How long `/livez` takes while clients send the largest texts: python -m bench.cpu.hostile [--seconds 10].

Eight clients send one kind of request in a loop, each as large as the limits allow or above them. A process of its own
asks for `/livez` every ten milliseconds. The promise: p99 below 50 ms for every kind, and resident memory afterwards
within 5 % of the plan. A kind's clients must all be answered, with 400 or with 503 and Retry-After.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from bench.lib.host import new_report, result_file
from bench.lib.results import save
from bench.lib.server import Server

PROMISED_MS = 50.0


def requests() -> dict[str, tuple[str, bytes]]:
    """Path and body by kind."""
    letters = random.Random(1)
    words = " ".join("".join(letters.choices("abcdefghijklmnop", k=letters.randint(2, 12))) for _ in range(140_000))
    turns = [{"role": ("user", "assistant")[at % 2], "content": words[at * 150 : at * 150 + 140]} for at in range(4096)]
    ask, chat = "/v1/completions", "/v1/chat/completions"
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "1 MB prompt": (ask, {"prompt": words[:1_000_000]}),
        "600 kB prompt": (ask, {"prompt": words[:600_000]}),
        "4,096 messages": (chat, {"messages": turns}),
        "1,000,000 token ids": (ask, {"prompt": [12345] * 1_000_000}),
        "128 prompts of 60 kB": (ask, {"prompt": [words[at * 500 :][:60_000] for at in range(128)]}),
        "128 prompts of 15 kB": (ask, {"prompt": [words[at * 500 :][:15_000] for at in range(128)]}),
        "control tokens": (chat, {"messages": [{"role": "user", "content": "<|im_end|>" * 40_000}]}),
    }
    return {
        kind: (path, json.dumps({"model": "bench", "max_tokens": 4, **fields}).encode())
        for kind, (path, fields) in kinds.items()
    }


def probe(port: int, seconds: float, times: Any) -> None:
    """Send the sorted times of `GET /livez`, in seconds."""
    found = []
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while time.monotonic() < end:
            began = time.perf_counter()
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n")
            connection.recv(4096)
            found.append(time.perf_counter() - began)
            time.sleep(0.01)  # a hundred probes a second: enough for a p99, and no load of their own
    times.send(sorted(found))


async def load(server: Server, path: str, body: bytes, clients: int, seconds: float) -> tuple[Counter[int], float]:
    """Responses by status, and the slowest in seconds."""
    statuses: Counter[int] = Counter()
    slowest = 0.0
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client:

        async def one() -> None:
            nonlocal slowest
            while time.monotonic() < end:
                began = time.monotonic()
                response = await client.post(path, content=body, headers={"Content-Type": "application/json"})
                statuses[response.status_code] += 1
                slowest = max(slowest, time.monotonic() - began)

        await asyncio.gather(*(one() for _ in range(clients)))
    return statuses, slowest


def measure(server: Server, kind: str, request: tuple[str, bytes], clients: int, seconds: float) -> dict[str, Any]:
    """One kind of request."""
    times, sending = multiprocessing.Pipe(duplex=False)
    prober = multiprocessing.Process(target=probe, args=(server.port, seconds, sending))
    prober.start()
    statuses, slowest = asyncio.run(load(server, *request, clients, seconds))
    found = times.recv()
    prober.join()
    return {
        "kind": kind,
        "livez_ms": {name: round(found[int(len(found) * share)] * 1e3, 1) for name, share in SHARES.items()},
        "livez_max_ms": round(found[-1] * 1e3, 1),
        "statuses": dict(statuses),
        "slowest_seconds": round(slowest, 2),
    }


SHARES = {"median": 0.5, "p99": 0.99}


def memory(server: Server) -> dict[str, float]:
    """Planned and resident bytes in MiB."""
    text = httpx.get(f"http://127.0.0.1:{server.admin}/metrics").text
    found: Counter[str] = Counter()
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.startswith("octavo:memory_budget_bytes") and 'part="in_all"' in series:
            found["planned"] += int(float(value))
        elif series.startswith("octavo:process_resident_bytes"):
            found["resident"] += int(float(value))
            found["resident api"] += int(float(value)) if 'process="api"' in series else 0
    return {name: round(size / 2**20, 1) for name, size in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each kind of request")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/hostile-<date>.json)")
    given = parser.parse_args()
    server = Server.start(["--model", "smollm2", "--kv-memory", "128Mi"])
    os.nice(5)  # after the start of the server, which would inherit it
    try:
        server.ready()
        rounds = []
        for kind, request in requests().items():
            rounds.append(measure(server, kind, request, given.clients, given.seconds))
            print(rounds[-1], flush=True)
        time.sleep(2)  # free memory is returned a second after the last large request
        kept = memory(server)
    finally:
        server.stop()
    slow = [one["kind"] for one in rounds if one["livez_ms"]["p99"] >= PROMISED_MS]
    save(given.output or result_file("hostile"), new_report(clients=given.clients, rounds=rounds, memory_mib=kept))
    print(json.dumps(kept), f"p99 at or above {PROMISED_MS:g} ms: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
