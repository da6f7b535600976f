"""Thousands of requests in one server: memory as planned, and then not a page more."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.support.waiting import eventually

ROWS, POOL_TOKENS = 64, 364 * 32
VOCABULARY = 49152
MODEL = "smollm2"


def measured(server, name: str, label: str) -> dict[str, float]:
    """A metric's values by its label."""
    found = re.findall(
        rf'^octavo:{name}{{.*{label}="(\w+)".*}} (\S+)$', server.admin.get("/metrics").text, re.MULTILINE
    )
    return {part: float(value) for part, value in found}


@pytest.fixture(scope="module")
def full_server(start):
    """Every row and every block of its pool has been used."""
    # No stored responses: their memory is planned, and nothing here would fill it.
    sizes = ("--kv-memory", "256Mi", "--max-running-requests", str(ROWS), "--response-store-entries", "0")
    server = start(*sizes)
    drawn = random.Random(0)
    length = POOL_TOKENS // ROWS

    def fill(_: int) -> int:
        prompt = [drawn.randrange(100, VOCABULARY) for _ in range(length - 2)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        return server.api.post("/v1/completions", json=body).status_code

    with ThreadPoolExecutor(ROWS) as pool:
        assert set(pool.map(fill, range(ROWS))) == {200}
    # The grammar process is planned, too.
    constrained = {"model": MODEL, "prompt": "A", "max_tokens": 8, "structured_outputs": {"choice": ["a", "b"]}}
    assert server.api.post("/v1/completions", json=constrained).status_code == 200
    return server


def test_memory_in_use_is_what_was_planned(full_server):
    planned = measured(full_server, "memory_budget_bytes", "part")
    in_use = sum(measured(full_server, "process_resident_bytes", "process").values())
    assert "memory of the host: weights " in full_server.log
    assert planned["in_all"] == sum(planned[p] for p in ("weights", "kv_pool", "activations", "swap", "processes"))
    # More would end a pod. Less is room that nothing uses: partial blocks are used again where requests end early.
    assert 0.93 * planned["in_all"] < in_use < 1.05 * planned["in_all"]


def test_requests_mistakes_and_lost_clients_leave_nothing_behind(full_server):
    """A quarter each: whole answers, streams, mistakes, and streams whose reader goes after the first event."""
    url = str(full_server.api.base_url)

    def some(count: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as client:
            for i in range(count):
                body = {"model": MODEL, "prompt": f"Request {i}", "max_tokens": 2}
                if i % 4 == 0:
                    assert client.post("/v1/completions", json=body).status_code == 200
                elif i % 4 == 1:
                    assert client.post("/v1/completions", json=body | {"stream": True}).text.endswith("[DONE]\n\n")
                elif i % 4 == 2:
                    assert client.post("/v1/completions", json=body | {"unheard_of": i}).status_code == 400
                else:
                    endless = body | {"stream": True, "max_tokens": 600, "ignore_eos": True}
                    with client.stream("POST", "/v1/completions", json=endless) as response:
                        assert next(response.iter_lines()).startswith("data: ")

    def rounds(count: int) -> dict[str, float]:
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(some, [count // 10] * 10))
        return measured(full_server, "process_resident_bytes", "process")

    before = rounds(400)
    after = rounds(2000)
    eventually(lambda: [full_server.load()[k] for k in ("running", "waiting", "blocks_pinned")] == [0, 0, 0])
    for process in ("api", "engine"):
        assert after[process] - before[process] < 5e6, f"{process} grew"
