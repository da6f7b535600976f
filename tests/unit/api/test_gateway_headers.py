"""What a gateway may say of a request, and what it is told of the prompt, when it asks."""

from __future__ import annotations

import pytest

from octavo_inference.server.auth import Keys
from octavo_protocol.hashing import block_hashes, root_hash
from octavo_protocol.prompt import PromptBlocks, decode_prompt, describe

WANT = {"X-Octavo-Want-Prompt": "1"}
LONG = list(range(100, 200))


async def test_a_prompt_is_described_to_who_asks(serve):
    async with serve(listen=True) as server:
        for stream in (False, True):
            answers = [await server.chat(WANT, stream=stream), await server.complete(WANT, prompt=LONG, stream=stream)]
            for answer, request in zip(answers, server.engine.seen[-2:], strict=True):
                hashes = block_hashes(root_hash("weights"), request.tokens, 32)
                assert decode_prompt(answer.headers["x-octavo-prompt"]) == describe(len(request.tokens), 32, hashes)
    assert len(decode_prompt(answers[1].headers["x-octavo-prompt"]).marks) == 3


async def test_nobody_else_is_told(serve):
    async with serve() as server:
        answers = [
            await server.chat(),
            await server.complete(stream=True),
            await server.complete({"X-Octavo-Want-Prompt": "0"}),
            await server.complete(WANT, prompt=["one", "two"]),
            await server.complete(WANT, model="other"),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404]
    assert not any(name.startswith("x-octavo") for answer in answers for name in answer.headers)


async def test_the_blocks_named_are_those_of_the_tenant(serve):
    async with serve(tenant_header=True) as server:
        answer = await server.complete(WANT | {"X-Octavo-Tenant": "a"}, prompt=LONG, cache_salt="s")
    [request] = server.engine.seen
    hashes = block_hashes(root_hash("weights", salt=request.salt), LONG, 32)
    assert decode_prompt(answer.headers["x-octavo-prompt"]) == describe(100, 32, hashes)


async def test_a_server_that_shares_no_prefixes_names_no_blocks(serve):
    async with serve(prefix_caching=False) as server:
        answer = await server.complete(WANT, prompt=LONG)
    assert decode_prompt(answer.headers["x-octavo-prompt"]) == PromptBlocks(100, 32)


async def test_gateways_say_whose_request_it_is(serve):
    async with serve(tenant_header=True) as server:
        for headers, salt in (
            ({"X-Octavo-Tenant": "a"}, None), ({"X-Octavo-Tenant": "a"}, "s"), ({"X-Octavo-Tenant": "b"}, None),
            ({}, None), ({}, "a"),
        ):  # fmt: skip
            await server.complete(headers, cache_salt=salt)
    assert [request.tenant for request in server.engine.seen] == ["a", "a", "b", "", ""]
    assert len({request.salt for request in server.engine.seen}) == 5, "no salt of one is another's"


async def test_a_servers_own_keys_stand_above_what_gateways_say(serve, tmp_path):
    (tmp_path / "keys").write_text("one\ntwo\n")
    async with serve(keys=Keys(str(tmp_path / "keys"), "--api-key-file"), tenant_header=True) as server:
        for key in ("one", "two"):
            await server.complete({"x-api-key": key, "X-Octavo-Tenant": "a"})
    assert len({request.tenant for request in server.engine.seen}) == 2


@pytest.mark.parametrize(
    ("allowed", "asked", "priority"),
    [(None, None, 0), (None, 7, 7), ("3", None, 3), ("3", 7, 3), ("3", -2, -2), ("-4", 0, -4), ("-4", None, -4)],
)
async def test_the_gateways_priority_bounds_the_requests_own(serve, allowed, asked, priority):
    async with serve(tenant_header=True) as server:
        await server.complete({} if allowed is None else {"X-Octavo-Priority": allowed}, priority=asked)
    assert server.engine.seen[0].priority == priority


async def test_without_the_flag_the_headers_say_nothing(serve):
    async with serve() as server:
        await server.complete({"X-Octavo-Tenant": "a", "X-Octavo-Priority": "-5"}, priority=4)
        await server.complete({"X-Octavo-Tenant": "not a word", "X-Octavo-Priority": "high"})
    assert [(r.tenant, r.salt, r.priority) for r in server.engine.seen] == [("", "", 4), ("", "", 0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Octavo-Tenant", ""),
        ("X-Octavo-Tenant", "a/b"),
        ("X-Octavo-Tenant", "a b"),
        ("X-Octavo-Tenant", "a" * 65),
        ("X-Octavo-Priority", ""),
        ("X-Octavo-Priority", "11"),
        ("X-Octavo-Priority", "+1"),
        ("X-Octavo-Priority", "1.0"),
    ],
)
async def test_what_no_gateway_sends_is_refused_by_name(serve, name, value):
    async with serve(tenant_header=True) as server:
        answer = await server.complete({name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert server.engine.seen == []


async def test_two_tenants_in_one_request_are_refused(serve):
    headers = [("X-Octavo-Tenant", "a"), ("x-octavo-tenant", "b")]
    async with serve(tenant_header=True) as server:
        answer = await server.api.post("/v1/completions", json={"model": "m", "prompt": "Once"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Octavo-Tenant")
