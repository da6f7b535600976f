"""Overhead of a proxy per request: latency at a fixed rate, CPU, maximum requests per second, and many streams at once.

With two cores the proxy has one to itself, and pod and client share the other: the load generator does not take CPU
time from the measured proxy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gateway.client import Answers, Client, request
from bench.gateway.proxies import Pod, running
from bench.lib.processes import free_ports, group, log_file, wait_for

Record = dict[str, Any]
Say = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the loads: rates are requests per second."""

    rounds: int = 3
    seconds: float = 4.0
    plain_rate: float = 500.0
    stream_rate: float = 100.0
    events: int = 20
    gap: float = 0.02
    prompt_bytes: int = 4000
    flat_out_connections: int = 32
    crowd: int = 2000
    crowd_events: int = 16
    crowd_gap: float = 0.5
    crowd_ramp: float = 4.0


def cores() -> tuple[set[int], set[int]]:
    """Cores of load generator and pods, and of the proxy: different ones where there are two."""
    mine = sorted(os.sched_getaffinity(0))
    return ({mine[0]}, {mine[1]}) if len(mine) > 1 else (set(mine), set(mine))


@contextlib.contextmanager
def fake_pod(events: int, gap: float) -> Iterator[Pod]:
    """A pod of `fake_pod.py`; its load report is on the same port."""
    [port], log = free_ports(1), log_file("fake-pod")
    command = [sys.executable, "-m", "bench.gateway.fake_pod", str(port), str(events), str(gap)]
    with group(command, log, 15.0, mode="w") as process:
        wait_for(f"http://127.0.0.1:{port}/v1/models", process, log, 15.0)
        yield Pod(port, port)


async def overhead(ways: Sequence[str], sizes: Sizes, say: Say) -> list[Record]:
    """Rounds of all proxies in turn, for each kind of load."""
    _, theirs = cores()
    content = "x" * sizes.prompt_bytes
    records: list[Record] = []
    with fake_pod(sizes.events, sizes.gap) as pod, contextlib.ExitStack() as stack:
        proxies = {name: stack.enter_context(running(name, [pod], theirs)) for name in ways}
        for kind, rate in (("plain", sizes.plain_rate), ("stream", sizes.stream_rate), ("flat-out", 0.0)):
            stream = kind == "stream"
            body = {"model": "bench", "stream": stream, "messages": [{"role": "user", "content": content}]}
            sent = request(body)
            for number in range(sizes.rounds + 1):  # the first round warms up
                for name, proxy in proxies.items():
                    client, answers = Client(proxy.port), Answers()
                    seconds = sizes.seconds if number else min(1.0, sizes.seconds)
                    before, began = proxy.cpu_seconds(), time.perf_counter()
                    if rate:
                        await client.at_rate(sent, rate, seconds, answers, stream=stream)
                    else:
                        await client.flat_out(sent, sizes.flat_out_connections, seconds, answers)
                    took, used = time.perf_counter() - began, proxy.cpu_seconds() - before
                    client.close()
                    if number:
                        found = answers.summary()
                        found |= {"per_second": round(found["answers"] / took, 1)}
                        found |= {"cpu_ms": round(1000 * used / max(1, found["answers"]), 4)}
                        records.append({"experiment": kind, "round": number, "way": name} | found)
                        say(records[-1])
    return records


async def crowd(ways: Sequence[str], sizes: Sizes, say: Say) -> list[Record]:
    """Many concurrent streams, once through each proxy."""
    _, theirs = cores()
    sent = request({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "x"}]})
    records: list[Record] = []
    with fake_pod(sizes.crowd_events, sizes.crowd_gap) as pod:
        for name in ways:
            with running(name, [pod], theirs) as proxy:
                client, answers = Client(proxy.port), Answers()
                await client.at_rate(sent, sizes.crowd / sizes.crowd_ramp, sizes.crowd_ramp, answers, stream=True)
                client.close()
                records.append({"experiment": "crowd", "round": 1, "way": name} | answers.summary())
                say(records[-1])
    return records
