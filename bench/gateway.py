"""What the gateway adds to a request, on loopback: the same calls straight to a fake pod and through the gateway.

Pod, gateway and client are processes of their own. Rounds of both ways alternate, so that a busy machine is busy for
both. Open loop at a fixed rate: a slow answer delays no later request. Run: `python bench/gateway.py --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import aiohttp
import uvloop
from aiohttp import web

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def pod(port: int, events: int, gap: float) -> None:
    """A pod that answers at once, or streams `events` with `gap` seconds between them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if not body.get("stream"):
            return web.json_response({"choices": [{"message": {"content": "word"}}]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(events):
            await response.write(EVENT)
            await asyncio.sleep(gap)
        await response.write(DONE)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


@dataclass(slots=True)
class Result:
    """Milliseconds of one way: to the first byte of the answer and to its end."""

    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    errors: int = 0


async def call(client: aiohttp.ClientSession, url: str, body: bytes, result: Result, *, stream: bool) -> None:
    began = time.perf_counter()
    first = 0.0
    data = b""
    try:
        async with client.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            async for chunk in response.content.iter_any():
                first = first or time.perf_counter()
                data = (data + chunk)[-64:]
            good = response.status == 200 and (data.endswith(DONE) or not stream)
    except (aiohttp.ClientError, TimeoutError):
        good = False
    if not good:
        result.errors += 1
        return
    result.first.append((first - began) * 1000)
    result.total.append((time.perf_counter() - began) * 1000)


async def load(url: str, body: bytes, rate: float, seconds: float, result: Result, *, stream: bool) -> None:
    """Requests at a fixed rate for some seconds."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client, asyncio.TaskGroup() as calls:
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            calls.create_task(call(client, url + "/v1/chat/completions", body, result, stream=stream))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def reachable(url: str) -> None:
    port = int(url.rpartition(":")[2])
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def summary(result: Result) -> dict[str, float]:
    out: dict[str, float] = {"answers": len(result.total), "errors": result.errors}
    for name, values in (("first", result.first), ("total", result.total)):
        cuts = quantiles(values, n=100)
        out |= {f"{name}_p50_ms": round(cuts[49], 3), f"{name}_p99_ms": round(cuts[98], 3)}
    return out


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(given: argparse.Namespace, runner: asyncio.Runner) -> dict[str, object]:
    pod_port, port, admin = free_port(), free_port(), free_port()
    direct, through = f"http://127.0.0.1:{pod_port}", f"http://127.0.0.1:{port}"
    own = [sys.executable, __file__, "--pod", str(pod_port), "--events", str(given.events), "--gap", str(given.gap)]
    gateway = [sys.executable, "-m", "octavo_gateway", "--port", str(port), "--admin-port", str(admin)]
    gateway += ["--static-endpoints", f"bench={direct}", "--drain-delay", "0", "--log-level", "warning"]
    processes = [subprocess.Popen(own), subprocess.Popen(gateway)]
    try:
        return runner.run(compare(given, direct, through, processes[1].pid))
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()


async def compare(given: argparse.Namespace, direct: str, through: str, gateway: int) -> dict[str, object]:
    """Alternate between both ways; `gateway` is the process whose CPU time counts."""
    report: dict[str, object] = {"python": platform.python_version(), "cpus": os.cpu_count(), "settings": vars(given)}
    report["load_average"] = os.getloadavg()
    content = "x" * given.prompt_bytes
    await asyncio.gather(reachable(direct), reachable(through))
    for kind in ("plain", "stream"):
        stream = kind == "stream"
        body = json.dumps({"model": "bench", "stream": stream, "messages": [{"role": "user", "content": content}]})
        ways = {"direct": (direct, Result()), "gateway": (through, Result())}
        for url, _ in ways.values():
            await load(url, body.encode(), given.rate, 1.0, Result(), stream=stream)
        used = 0.0
        for _ in range(given.rounds):
            for name, (url, result) in ways.items():
                before = cpu_seconds(gateway)
                await load(url, body.encode(), given.rate, given.seconds, result, stream=stream)
                used += cpu_seconds(gateway) - before if name == "gateway" else 0.0
        found = {name: summary(result) for name, (_, result) in ways.items()}
        added = {key: round(found["gateway"][key] - found["direct"][key], 3) for key in found["direct"] if "_ms" in key}
        cpu = round(1000 * used / max(1, found["gateway"]["answers"]), 3)
        report[kind] = found | {"added": added, "gateway_cpu_ms_per_request": cpu}
    report["crowd"] = await crowd(given, through)
    return report


async def crowd(given: argparse.Namespace, url: str) -> dict[str, float]:
    """Many streams at the same time through the gateway."""
    body = json.dumps({"model": "bench", "stream": True, "messages": []}).encode()
    result = Result()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client, asyncio.TaskGroup() as calls:
        for _ in range(given.crowd):
            calls.create_task(call(client, url + "/v1/chat/completions", body, result, stream=True))
    return {"streams": given.crowd} | summary(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second (default %(default)g)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a round (default %(default)g)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way (default %(default)s)")
    parser.add_argument("--events", type=int, default=20, help="events of a streamed answer (default %(default)s)")
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between events (default %(default)g)")
    parser.add_argument("--prompt-bytes", type=int, default=4000, help="size of the prompt (default %(default)s)")
    parser.add_argument("--crowd", type=int, default=500, help="streams at the same time (default %(default)s)")
    parser.add_argument("--pod", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if given.pod:
            runner.run(pod(given.pod, given.events, given.gap))
        else:
            print(json.dumps(measure(given, runner), indent=2))


if __name__ == "__main__":
    main()
