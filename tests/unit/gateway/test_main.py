"""The command as a process: static endpoints, and an end by SIGTERM that drops nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import aiohttp
import pytest
from tests.support.ports import free_port

from octavo_gateway.__main__ import main
from octavo_gateway.discovery.static import StaticError, parse


async def start(*arguments: str):
    port, admin = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "octavo_gateway", "--port", str(port), "--admin-port", str(admin), *arguments
    )
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as client, asyncio.timeout(20):
        while True:
            try:
                async with client.get(url + "/readyz") as response:
                    if response.status == 200:
                        return process, url
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)


async def test_sigterm_lets_streams_finish(world, streams):
    gate = asyncio.Event()
    events = [b"data: 1\n\n", b"data: [DONE]\n\n"]
    pod = await world.pod(streams(events, gate=gate))
    process, url = await start("--static-endpoints", f"m={pod.url}", "--drain-delay", "0.2", "--drain-timeout", "20")
    async with (
        aiohttp.ClientSession() as client,
        client.post(url + "/v1/completions", json={"model": "m", "stream": True}) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == events[0]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while True:
                try:
                    async with client.get(url + "/readyz") as ready:
                        assert ready.status in {200, 503}
                except aiohttp.ClientError:
                    break
        assert process.returncode is None
        gate.set()
        assert await response.read() == events[1]
    async with asyncio.timeout(30):
        assert await process.wait() == 0


async def test_sigterm_when_idle_ends_at_once():
    process, _ = await start("--static-endpoints", "m=http://127.0.0.1:9", "--drain-delay", "0")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert time.monotonic() - began < 15


def test_static_endpoints():
    table = parse(["m=http://127.0.0.1:1|2,http://[::1]:3", "n=http://h:4"])
    first, second = table.find("m").endpoints
    assert (first.url, first.admin_url) == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert (second.url, second.admin_url) == ("http://[::1]:3", "")
    assert table.find("n").endpoints[0].url == "http://h:4"
    assert not table.find("m").hold
    assert table.find("m").policy.strategy == "PrefixAware"
    assert parse(["m=http://h:1"], "RoundRobin").find("m").policy.strategy == "RoundRobin"


@pytest.mark.parametrize(
    "value", ["m", "=http://h:1", "m=https://h:1", "m=http://h", "m=http://h:1/x", "m=http://h:1|x"]
)
def test_malformed_static_endpoints(value):
    with pytest.raises(StaticError, match="http://"):
        parse([value])


def test_the_same_model_twice():
    with pytest.raises(StaticError, match="twice"):
        parse(["m=http://h:1", "m=http://h:2"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--all-namespaces", "--namespace", "a"],
        ["--static-endpoints", "m=http://h:1", "--namespace", "a"],
        ["--static-strategy", "Session", "--namespace", "a"],
        ["--operator-service", "a.b:x"],
        ["--api-key-file", "/does/not/exist"],
    ],
)
def test_settings_that_contradict_are_said(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("octavo-gateway: ")


@pytest.mark.parametrize("arguments", [["--hold-max-bytes", "much"], ["--hold-timeout", "-1"]])
def test_values_out_of_range(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[1] in capsys.readouterr().err
