"""Sleep and wake of a server with real weights."""

from __future__ import annotations

import threading

import pytest
from tests.support.waiting import eventually

from .conftest import Running, Start

SLEEP, WAKE_UP = "/v1/octavo/sleep", "/v1/octavo/wake_up"


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start()


def test_a_server_that_sleeps_gives_its_memory_back_and_answers_as_before_when_it_wakes(server: Running) -> None:
    before, load = server.chat()["choices"], server.load()
    full = server.engine.memory_info().rss
    process = server.engine.pid
    asleep = server.admin.post(SLEEP).json()
    assert asleep["sleeping"]
    # The 4-bit weights alone take about 100 MB.
    assert server.engine.memory_info().rss < full - 80e6
    refused = server.api.post("/v1/chat/completions", json=server.body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
    assert int(refused.headers["retry-after"]) > 0
    assert server.api.get("/readyz").status_code == 503
    assert server.api.get("/livez").status_code == 200
    assert server.admin.post(SLEEP).json()["sleeping"], "asleep already"
    assert server.admin.get(SLEEP).json()["sleeping"]

    awake = server.admin.post(WAKE_UP).json()
    assert not awake.get("sleeping", True), (awake, server.log[-3000:])
    assert server.engine.pid == process
    assert server.api.get("/readyz").status_code == 200
    assert server.chat()["choices"] == before
    after = server.load()
    assert (after["blocks_total"], after["max_running"]) == (load["blocks_total"], load["max_running"])
    assert after["start_time"] > load["start_time"], "counters restart at 0, so gateways must see a restart"
    assert server.admin.post(WAKE_UP).json() | {"engine_resident_bytes": 0} == {
        "sleeping": False,
        "engine_resident_bytes": 0,
        "seconds": 0.0,
    }


def test_running_sequences_finish_before_the_sleep(server: Running) -> None:
    answers: list[dict] = []
    running = threading.Thread(target=lambda: answers.append(server.chat(max_tokens=300, ignore_eos=True)))
    running.start()
    eventually(lambda: server.load()["running"])
    assert server.admin.post(SLEEP).json()["sleeping"]
    running.join()
    assert answers[0]["usage"]["completion_tokens"] == 300
    assert not server.admin.post(WAKE_UP).json()["sleeping"]
