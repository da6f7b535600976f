"""The sampling loop over HTTP: pods and a gateway that answer, lie, hang, break off, and come back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from octavo_operator.api.resource import Key, LLMDeployment, parse
from octavo_operator.autoscaler.decision_log import DecisionLog
from octavo_operator.autoscaler.loop import AutoscaleLoop
from octavo_operator.autoscaler.replay import main
from octavo_operator.autoscaler.report_client import LIMIT_BYTES, fetch
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Pod
from octavo_protocol.load import GatewayReport, LoadReport, ModelTraffic, StepSums, encode

KEY = Key("models", "tiny")
HOST = re.compile(r"//([^:/]+):9000/")


def report(**changes: Any) -> LoadReport:
    names = """sequence blocks_cached waiting waiting_tokens uncached_prompt_tokens oldest_wait preemptions requests
        prompt_tokens generation_tokens prefix_hit_tokens running"""
    values: dict[str, Any] = dict.fromkeys(names.split(), 0)
    values |= {"start_time": 5.0, "model": "tiny", "block_size": 32, "blocks_total": 100, "blocks_pinned": 40}
    values |= {"max_running": 64, "max_batched_tokens": 512, "max_waiting": 99, "ready": True, "draining": False}
    return LoadReport(**(values | changes))


def owner(most: int = 8) -> LLMDeployment:
    scaling = {"mode": "Builtin", "minReplicas": 1, "maxReplicas": most}
    spec = {"model": {"uri": "oci://registry.local/tiny:1"}, "resources": {"gpu": {"count": 0}}, "autoscaling": scaling}
    return parse({"metadata": {"name": "tiny", "namespace": "models", "uid": "u", "generation": 1}, "spec": spec})


def pods(count: int) -> tuple[Pod, ...]:
    make = partial(Pod, revision="r", config="", created=1.0, ready=True, loaded=True, scheduled=True)
    return tuple(make(name=f"p{n}", ip=f"pod-{n}") for n in range(count))


class Site:
    """Servers by name; each answers with what the test puts into `answers`, or does what it says."""

    def __init__(self, session: aiohttp.ClientSession, log: Path) -> None:
        self.answers: dict[str, bytes | Callable[[web.Request], Any]] = {}
        self.ports: dict[str, int] = {}
        self.enqueued: list[Key] = []
        self.now = 1_000_000.0
        self.log = DecisionLog(log)
        self.loop = AutoscaleLoop(
            lambda url: fetch(session, self.where(url)),
            self.gateways,
            self.enqueued.append,
            OperatorMetrics(),
            self.clock,
            self.log,
        )

    def clock(self) -> float:
        return self.now

    def where(self, url: str) -> str:
        found = HOST.search(url)
        assert found
        port = self.ports.get(found[1], 1)  # nobody listens on port 1
        return f"http://127.0.0.1:{port}/{found[1]}"

    async def gateways(self) -> dict[str, str]:
        return {"g": "gateway"}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        answer = self.answers[request.path.strip("/")]
        if callable(answer):
            found = await answer(request)
            assert isinstance(found, web.StreamResponse)
            return found
        return web.Response(body=answer)

    async def look(self, seconds: float = 2.0) -> tuple[int, str]:
        self.now += seconds
        await self.loop.tick()
        scaling = self.loop.scaling(KEY)
        assert scaling is not None
        return scaling.desired, scaling.reason


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session:
        made = Site(session, tmp_path / "log")
        app = web.Application()
        app.router.add_get("/{name}", made.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        port = runner.addresses[0][1]
        made.ports = dict.fromkeys((*(f"pod-{n}" for n in range(4)), "gateway"), port)
        yield made
        made.log.close()
        await runner.cleanup()


def traffic(arrivals: int, now: float, **changes: Any) -> bytes:
    values: dict[str, Any] = {"namespace": "models", "name": "tiny", "arrivals": arrivals, "last_arrival": now}
    values |= dict.fromkeys(("arrival_prompt_tokens", "in_flight", "held", "held_prompt_tokens"), 0)
    model = ModelTraffic(**(values | {"oldest_hold": 0.0} | changes))
    return encode(GatewayReport(sequence=1, start_time=1.0, models=[model]))


def busy(seconds: int, rate: float) -> LoadReport:
    """A pod that has served `rate` requests of 100 + 50 tokens per second in steps of 20 ms with 16 rows."""
    steps, requests = seconds * 50, int(seconds * rate)
    sums: dict[str, Any] = {"count": steps, "seconds": steps * 0.02, "rows": 16 * steps, "rows_rows": 256 * steps}
    sums |= {"seconds_rows": 16 * steps * 0.02}
    counts = {"requests": requests, "prompt_tokens": 100 * requests, "generation_tokens": 50 * requests}
    return report(**counts, running=16, blocks_pinned=40, steps=StepSums(**sums))


async def hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


async def endless(_: web.Request) -> web.Response:
    return web.Response(body=b" " * (LIMIT_BYTES + 1))


async def broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def refused(_: web.Request) -> web.Response:
    return web.Response(status=503)


async def test_the_rate_counts_end_to_end_and_the_log_says_why(site: Site, tmp_path: Path, capsys: Any) -> None:
    site.loop.track(owner(), pods(2), 2)
    site.answers["gateway"] = traffic(0, site.now)
    for tick in range(40):
        site.answers |= {f"pod-{n}": encode(busy(2 * tick, 20.0)) for n in range(2)}
        site.answers["gateway"] = traffic(int(2 * tick * 60), site.now)
        desired, reason = await site.look()
    assert (reason, desired > 2) == ("ArrivalRate", True)
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert "requests/s of" in scaling.changes[0].inputs
    assert main([str(tmp_path / "log")]) == 0
    assert "40 decisions, 0 differ" in capsys.readouterr().out


def named(answer: Any) -> str:
    """The same in every process, without the address of a function."""
    return str(getattr(answer, "__name__", answer))


@pytest.mark.parametrize("answer", [hang, endless, broken, refused, b"[1, 2", b'{"sequence": NaN}'], ids=named)
async def test_whatever_one_pod_answers_the_others_are_scaled_by(site: Site, answer: Any) -> None:
    site.loop.track(owner(), pods(4), 4)
    full = encode(report(blocks_pinned=90, running=9))
    site.answers |= {"gateway": traffic(0, site.now), **{f"pod-{n}": full for n in range(3)}, "pod-3": answer}
    desired, reason = await site.look()
    assert (desired, reason) == (4, "Steady")
    site.answers |= {f"pod-{n}": encode(report(blocks_pinned=100, waiting=8, waiting_tokens=800)) for n in range(3)}
    desired, _ = await site.look()
    assert desired > 4


async def test_all_gone_for_two_minutes_and_back(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.loop.track(owner(), pods(4), 4)
    there = dict(site.ports)
    site.answers |= {"gateway": traffic(0, site.now), **{f"pod-{n}": encode(report()) for n in range(4)}}
    await site.look()
    site.ports = {}
    seen = [await site.look() for _ in range(60)]
    assert {desired for desired, _ in seen} == {4}
    assert seen[-1][1] == "MetricsUnavailable"
    scaling = site.loop.scaling(KEY)
    assert scaling is not None
    assert scaling.notice is not None
    assert scaling.notice[0] == "MetricsUnavailable"
    assert sum("MetricsUnavailable" in entry.getMessage() for entry in caplog.records) == 1
    site.ports = there
    for _ in range(12):
        desired, reason = await site.look()
    assert desired == 4
    assert reason != "MetricsUnavailable"
