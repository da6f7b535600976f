"""Limits of keys on gateway processes: one number, however many of them there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from tests.integration.gateway.conftest import Gateway, RecordingPod, StartGateway
from tests.support.ports import free_port
from tests.support.waiting import patient

HEADERS = {"Authorization": "Bearer alpha"}
KEYS = "keys:\n- {name: team-a, key: alpha, requestsPerMinute: %d}\n- {name: team-b, key: beta}\n"


async def statuses(session: aiohttp.ClientSession, gateway: Gateway, count: int) -> list[int]:
    found = []
    for _ in range(count):
        async with session.post(
            gateway.url + "/v1/completions", json={"model": "m", "prompt": "x"}, headers=HEADERS
        ) as response:
            found.append(response.status)
            if response.status == 429:
                assert int(response.headers["Retry-After"]) >= 1
                assert response.headers["x-ratelimit-limit-requests"] == "30"
    return found


async def test_three_gateways_keep_one_limit(start_gateway: StartGateway, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(KEYS % 30)
    pod = RecordingPod()
    admins = [free_port() for _ in range(3)]
    peers = [f"--peers=127.0.0.1:{port}" for port in admins]
    pods = [f"http://127.0.0.1:{pod.port}"]
    gateways = [start_gateway("--api-key-file", str(path), *peers, pods=pods, admin_port=port) for port in admins]
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session, asyncio.timeout(patient(30)):
        for port in admins:
            while b'octavo_gateway_gateways{state="heard"} 3.0' not in await _metrics(session, port):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    begun, answered = loop.time(), 0
    async with aiohttp.ClientSession() as session:
        # Four times the limit, over all of them, for at least five words of each to the others.
        while loop.time() - begun < 5.5:
            for gateway in gateways:
                answered += (await statuses(session, gateway, 4)).count(200)
            await asyncio.sleep(0.02)
    taken = loop.time() - begun
    # The bucket and what came in; a quarter of the limit and one for each at worst beyond that.
    assert 30 <= answered <= 30 + 30 * taken / 60 + 30 / 4 + 3
    assert len(pod.seen) == answered
    assert not any(b"alpha" in gateway.log.read_bytes() for gateway in gateways)
    pod.close()


async def _metrics(session: aiohttp.ClientSession, port: int) -> bytes:
    async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
        return await response.read()


async def test_a_key_file_that_becomes_wrong_keeps_the_keys_and_says_so(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(KEYS % 1000)
    pod = RecordingPod()
    gateway = start_gateway("--api-key-file", str(path), pods=[f"http://127.0.0.1:{pod.port}"])
    path.write_text(KEYS.replace("requestsPerMinute", "requestPerMinute") % 1)
    async with aiohttp.ClientSession() as session, asyncio.timeout(patient(30)):
        while gateway.metric("octavo_gateway_key_file_valid"):
            assert await statuses(session, gateway, 1) == [200]
            await asyncio.sleep(0.05)
        assert await statuses(session, gateway, 3) == [200] * 3
    (said,) = [line for line in gateway.logged() if "key file" in line["message"]]
    assert "line 2, keys[0]: unknown field; is it 'requestsPerMinute'?" in said["message"]
    pod.close()
