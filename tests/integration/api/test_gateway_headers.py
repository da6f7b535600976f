"""A server behind gateways: tenants are kept apart and take turns, and gateways learn what it has cached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.waiting import eventually

from octavo_protocol.hashing import keys
from octavo_protocol.load import CacheDelta, decode_load
from octavo_protocol.prompt import decode_prompt

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12


@pytest.fixture(scope="module")
def server(start):
    return start("--tenant-header", "--max-running-requests", "2", "--kv-memory", "24Mi")


def ask(server, tenant, content=PROMPT, headers=None, **fields):
    body = server.body(content, max_tokens=4) | fields
    response = server.api.post(
        "/v1/chat/completions", json=body, headers={"X-Octavo-Tenant": tenant, **(headers or {})}
    )
    assert response.status_code == 200, response.text
    return response


def cached(response):
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def delta(server, after) -> CacheDelta:
    found = decode_load(server.admin.get(f"/v1/octavo/load?cache_after={after}").content).cache
    assert found is not None
    return found


def test_a_tenant_finds_what_it_computed_and_nobody_elses(server):
    assert cached(ask(server, "a")) == 0
    assert cached(ask(server, "b")) == 0
    assert cached(ask(server, "a")) >= 64
    assert cached(ask(server, "b")) >= 64
    assert cached(ask(server, "b", cache_salt="a")) == 0


def test_the_blocks_of_a_prompt_are_among_those_that_the_server_tells_of(server):
    before = delta(server, 0)
    answer = ask(server, "teller", headers={"X-Octavo-Want-Prompt": "1"})
    prompt = decode_prompt(answer.headers["x-octavo-prompt"])
    after = delta(server, before.sequence)
    assert prompt.tokens == answer.json()["usage"]["prompt_tokens"]
    assert len(prompt.marks) == prompt.tokens // prompt.block_size
    assert not after.reset
    assert {key for _, key in prompt.marks} <= set(keys(after.added))
    assert not {key for _, key in prompt.marks} & set(keys(before.added))


def test_deltas_add_up_to_all_while_the_pool_is_overrun(server):
    known: set[bytes] = set()
    sequence = went = 0
    for number in range(24):
        ask(server, "many", f"{number} {PROMPT}" * 2, max_tokens=1)
        change = delta(server, sequence)
        known = (
            set(keys(change.added)) if change.reset else (known | set(keys(change.added))) - set(keys(change.removed))
        )
        sequence, went = change.sequence, went + len(change.removed)
    everything = delta(server, 0)
    assert everything.reset
    assert known == set(keys(everything.added))
    assert went > 0, "the pool was never full"
    server.admin.post("/v1/octavo/cache/reset")
    eventually(lambda: set(keys(delta(server, sequence).removed)) >= known)
    assert delta(server, 0).added == b""


def test_one_tenants_many_requests_do_not_stand_before_anothers_one(server):
    with ThreadPoolExecutor(13) as pool:
        crowd = [pool.submit(ask, server, "crowd", f"{i}", max_tokens=60, ignore_eos=True) for i in range(12)]
        eventually(lambda: server.load()["waiting"] >= 8)
        ask(server, "single", "one")
        assert server.load()["waiting"] > 0
        assert all(done.result().status_code == 200 for done in crowd)
