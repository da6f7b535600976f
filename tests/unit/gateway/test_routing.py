"""Where requests go, from the text of their bodies and what pods say of themselves."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from functools import lru_cache

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_gateway.api.request_head import read_head
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, build, table
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.replica_load import SentRequests
from octavo_gateway.pool.reservation import Ending, RequestOutcome
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.candidate import LEAST_LOAD, ROUND_ROBIN, SESSION, STRATEGIES, Policy
from octavo_gateway.routing.prompt_features import MAX_SESSION
from octavo_protocol.hashing import block_hashes
from octavo_protocol.load import CacheDelta, LoadReport, StepSums
from octavo_protocol.prompt import describe, encode_prompt
from octavo_protocol.routes import route

BLOCK, BLOCKS = 16, 2000
CHAT = route("POST", "/v1/chat/completions")


def text(size, seed=0):
    return random.Random(seed).randbytes(size // 2).hex().encode()


@lru_cache(256)
def hashes(data):
    """Of an engine with one token for every four bytes."""
    return block_hashes(
        b"", [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data) // 4 * 4, 4)], BLOCK
    )


def report(**fields):
    numbers = {field.name for field in msgspec.structs.fields(LoadReport) if field.type is int}
    values = dict.fromkeys(numbers, 0) | {
        "start_time": 1.0, "model": "m", "block_size": BLOCK, "blocks_total": BLOCKS, "oldest_wait": 0.0,
        "max_running": 64, "max_batched_tokens": 2048, "ready": True, "draining": False,
    }  # fmt: skip
    return LoadReport(**(values | fields))


class Gateway:
    """A pool of one deployment with a clock of its own."""

    def __init__(self, *pods, policy=None, seed=0):
        self.now = 1000.0
        self.registry = ModelRegistry(Bounds(), lambda: self.now, random.Random(seed).random)
        self.policy = policy or Policy()
        self.has(*pods)

    def has(self, *names, **addresses):
        """Pods by name, at an address named like them or at another one."""
        found = {name: name for name in names} | addresses
        pods = tuple(Endpoint(name, f"http://{at}:8000", f"http://{at}:9000") for name, at in found.items())
        self.registry.update(table([Deployment("ns", "d", ("m",), endpoints=pods, policy=self.policy)]))
        self.pool = self.registry.find("m").pool

    def pod(self, name):
        return next(u for u in self.pool.replicas.values() if u.endpoint.name == name)

    def ask(self, data, tenant="", salt=b"", session=None):
        reservation = self.pool.reserve(self.pool.prompt(data, tenant, salt, session))
        return reservation, reservation.replica.endpoint.name

    def serve(self, data, **arguments):
        """A whole request; the name of its pod."""
        reservation, name = self.ask(data, **arguments)
        self.pool.answered(reservation, encode_prompt(describe(len(data) // 4, BLOCK, hashes(data))))
        reservation.first_token(0.1)
        self.end(reservation)
        return name

    def end(self, reservation, ending=Ending.FINISHED):
        self.pool.settle(RequestOutcome(reservation, ending))

    def report(self, name, *, after=None, cache=None, **fields):
        """A second later the pod reports; `cache`: all that it has."""
        self.now += 1
        replica = self.pod(name)
        replica.asked(self.now)
        known = self.pool.router.index.sequence(replica.endpoint.url)
        if cache is not None:
            added = b"".join(h[:8] for data in cache for h in hashes(data))
            fields["cache"] = CacheDelta(sequence=known + 1, reset=True, added=added)
        self.pool.take_report(replica, report(**fields), known if after is None else after)


def body(**fields):
    return json.dumps({"model": "m", **fields}).encode()


def test_the_text_of_the_next_turn_begins_with_that_of_this_one():
    turns = [{"role": "system", "content": 'say "ä"'}, {"role": "user", "content": "hello"}]
    one = read_head(body(messages=turns, stream=True, max_tokens=3), CHAT).text(["messages"])
    turns += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    assert read_head(body(temperature=0, messages=turns), CHAT).text(["messages"]).startswith(one)
    assert (
        read_head(body(prompt="once upon a time"), CHAT)
        .text(["prompt"])
        .startswith(read_head(body(prompt="once upon"), CHAT).text(["prompt"]))
    )
    assert (
        read_head(json.dumps({"model": "m", "messages": turns}, indent=2).encode(), CHAT)
        .text(["messages"])
        .startswith(
            read_head(json.dumps({"model": "m", "messages": turns[:2]}, indent=2).encode(), CHAT).text(["messages"])
        )
    )


@pytest.mark.parametrize("fields", [{}, {"messages": None}, {"prompt": []}, {"messages": 7, "prompt": "x"}])
def test_any_body_has_a_text(fields):
    assert len(read_head(body(**fields), CHAT).text(["messages"])) < 10


def test_a_conversation_goes_where_it_was():
    gateway = Gateway(*"abcdef")
    for conversation in range(6):
        first = text(8000, conversation)
        home = gateway.serve(first)
        for turn in range(1, 4):
            first += text(2000, 100 * conversation + turn)
            assert gateway.serve(first) == home


def test_tenants_and_salts_share_no_prefix():
    gateway, prompt = Gateway("a", "b"), text(8000)
    home = gateway.serve(prompt, tenant="t", salt=b'"s"')
    for tenant, salt in (("t", b'"s"'), ("u", b'"s"'), ("t", b""), ("", b'"s"')):
        reservation, name = gateway.ask(prompt, tenant, salt)
        assert (reservation.matched > 0) == ((tenant, salt) == ("t", b'"s"')), (tenant, salt)
        assert reservation.matched == 0 or name == home
        gateway.end(reservation)


def test_what_another_gateway_sent_there_is_found():
    gateway, prompt = Gateway("a", "b"), text(8000)
    home = gateway.serve(prompt)
    (other,) = {"a", "b"} - {home}
    gateway.report(home, cache=[])
    gateway.report(other, cache=[prompt])
    reservation, name = gateway.ask(prompt)
    assert (name, reservation.choice.reason) == (other, "affinity")
    assert reservation.matched == pytest.approx(2000, abs=64)


def test_two_gateways_send_a_new_prompt_to_the_same_pod_and_other_prompts_elsewhere():
    pods, homes = "abcdefgh", set()
    for seed in range(30):
        chosen = {Gateway(*pods, seed=gateway).serve(text(4000, seed)) for gateway in range(4)}
        assert len(chosen) == 1
        homes |= chosen
    assert len(homes) > 5


@pytest.mark.parametrize("system", [0, 3000], ids=["nothing shared", "shared system prompt"])
def test_a_conversation_that_alternates_between_gateways_stays_on_its_pod(system):
    """One request at a time. Every report was taken in the middle of the last request, so it shows a row."""
    gateways = [Gateway(*"abc", seed=seed) for seed in (1, 2, 3)]
    shared = [{"role": "system", "content": text(system).decode()}] if system else []
    held = {name: [] for name in "abc"}
    if system:
        for gateway in gateways:
            for name in "abc":
                # Everybody has answered something with it.
                held[name].append(read_head(body(messages=shared), CHAT).text(["messages"]))
                gateway.report(name, cache=held[name])
            gateway.serve(held["a"][0])
    turn, moved = 0, 0
    for number in range(12):
        messages, places = [*shared, {"role": "user", "content": text(1500, number).decode()}], set()
        for step in range(4):
            data = read_head(body(messages=messages), CHAT).text(["messages"])
            place = gateways[turn % 3].serve(data)
            held[place].append(data)
            places.add(place)
            for gateway in gateways:
                for name in "abc":
                    busy = int(name == place)
                    gateway.report(name, cache=held[name], running=busy, blocks_pinned=60 * busy)
            turn += 1
            messages += [
                {"role": "assistant", "content": f"{step}"},
                {"role": "user", "content": text(600, turn).decode()},
            ]
        moved += len(places) - 1
    assert moved <= 1


def test_a_conversation_of_a_pod_that_leaves_moves_at_once_and_once():
    gateway, prompt = Gateway(*"abcd"), text(8000)
    home = gateway.serve(prompt)
    gateway.report(home, draining=True, cache=[prompt])
    prompt += text(800, 1)
    moved = gateway.serve(prompt)
    assert moved != home
    for seed in range(2, 5):
        prompt += text(800, seed)
        assert gateway.serve(prompt) == moved
    # Those that refused it with 503, or whose address is terminating, are left as fast.
    gateway.pod(moved).back_off(gateway.now, draining=True)
    other = gateway.serve(prompt)
    assert other not in (home, moved)
    gateway.has(*(set("abcd") - {other}))
    assert gateway.serve(prompt) not in (home, other)


@settings(max_examples=scaled(40), deadline=None)
@given(
    st.lists(st.sampled_from(["ready", "not ready", "draining", "avoided", "lying", "silent"]), max_size=6),
    st.sampled_from(STRATEGIES),
    st.integers(0, 5),
    st.sampled_from([None, "s"]),
)
def test_only_pods_that_accept_are_chosen(states, strategy, seed, session):
    gateway = Gateway(*(f"p{n}" for n in range(len(states))), policy=Policy(strategy))
    for n, state in enumerate(states):
        pod = gateway.pod(f"p{n}")
        if state == "not ready":
            pod.endpoint = replace(pod.endpoint, ready=False)
        elif state == "avoided":
            pod.back_off(gateway.now + 1)
        elif state != "silent":
            lie = {"blocks_pinned": BLOCKS + 1} if state == "lying" else {}
            gateway.report(f"p{n}", draining=state == "draining", cache=[text(4000, seed)], **lie)
            gateway.now -= 1
    accepting = {f"p{n}" for n, state in enumerate(states) if state in ("ready", "lying", "silent")}
    for number in range(4):
        prompt = gateway.pool.prompt(text(4000, seed + number % 2), "", b"", session)
        reservation = gateway.pool.reserve(prompt)
        assert (reservation.replica.endpoint.name if reservation else None) in (accepting or {None})


def test_a_restarted_gateway_presumes_where_a_conversation_was():
    messages = [{"role": "user", "content": text(3000).decode()}]
    home = Gateway(*"abcdef").serve(read_head(body(messages=messages), CHAT).text(["messages"]))
    messages += [{"role": "assistant", "content": "{}"}, {"role": "user", "content": "go on"}]
    reservation, name = Gateway(*"abcdef", seed=9).ask(read_head(body(messages=messages), CHAT).text(["messages"]))
    assert (name, reservation.choice.reason) == (home, "presumed")


def test_two_gateways_do_not_storm_a_new_pod():
    """Both see the same reports. A second's worth of requests must not put more on the new pod than the others have."""
    gateways = [Gateway(*"abcd", seed=seed) for seed in (1, 2)]
    for seed in range(60):
        gateways[seed % 2].ask(text(4000, seed))
    loads = {name: sum(g.pod(name).load.in_flight.requests for g in gateways) for name in "abcd"}
    for gateway in gateways:
        gateway.has(*"abcde")
        for name in "abcde":
            rows = loads.get(name, 0)
            gateway.report(name, running=rows, blocks_pinned=rows * 70)
    new = 0
    for seed in range(40):
        _, name = gateways[seed % 2].ask(text(4000, 9000 + seed))
        new += name == "e"
    assert 5 <= new <= 20


def test_least_load_and_round_robin_look_for_no_prefix():
    for strategy in (LEAST_LOAD, ROUND_ROBIN):
        gateway = Gateway("a", "b", policy=Policy(strategy))
        reservations = [gateway.ask(text(8000)) for _ in range(6)]
        assert [reservation.prompt.keys for reservation, _ in reservations] == [()] * 6
        assert sorted(name for _, name in reservations) == ["a"] * 3 + ["b"] * 3


def test_sessions_stick_and_without_one_the_prefix_decides():
    gateway = Gateway(*"abcd", policy=Policy(SESSION))
    homes = {s: {gateway.serve(text(4000, n), session=s) for n in range(5)} for s in map(str, range(30))}
    assert {len(pods) for pods in homes.values()} == {1}
    assert len({pod for pods in homes.values() for pod in pods}) == 4
    home = gateway.serve(text(8000, 77))
    for session in (None, "", "x" * (MAX_SESSION + 1)):
        assert gateway.serve(text(8000, 77), session=session) == home


def test_tokens_are_estimated_by_what_answers_told():
    gateway = Gateway("a")
    assert gateway.pool.prompt(b"x" * 4000, "", b"", None).tokens == 1000
    for _ in range(50):
        reservation, _ = gateway.ask(text(4000))
        gateway.pool.answered(reservation, encode_prompt(describe(2000, BLOCK, [])))
        gateway.end(reservation)
    assert gateway.pool.prompt(b"x" * 4000, "", b"", None).tokens == pytest.approx(2000, rel=0.05)
    for tokens in (0, 2_000_000):
        reservation, _ = gateway.ask(text(4000))
        gateway.pool.answered(reservation, encode_prompt(describe(tokens, BLOCK, [])))
    assert gateway.pool.prompt(b"x" * 4000, "", b"", None).tokens == pytest.approx(2000, rel=0.05)


def test_answers_are_expected_to_be_as_long_as_they_were():
    gateway = Gateway("a")
    gateway.report("a")
    gateway.report("a", requests=100, generation_tokens=40_000)
    assert gateway.pool.lengths.mean.value == pytest.approx(400, rel=0.02)


def test_answers_that_last_longer_than_reports_count_whole():
    gateway = Gateway("a")
    for second in range(400):
        # Four at a time, 100 tokens a second together, one ends every ten seconds.
        gateway.report("a", requests=second // 10, generation_tokens=100 * second, running=4)
    assert gateway.pool.lengths.mean.value == pytest.approx(1000, rel=0.1)


def test_a_claim_of_endless_answers_is_not_believed():
    gateway = Gateway("a", "b")
    for second in range(1, 60):
        gateway.report("b", requests=10 * second, generation_tokens=1000 * second)
    gateway.report("a")
    gateway.report("a", requests=1, generation_tokens=2**52)
    assert gateway.pool.reports.rejected == {"output": 1}
    gateway.report("a", requests=2, generation_tokens=2**52 + BLOCK * BLOCKS)
    assert gateway.pool.lengths.mean.value < 110


def test_a_clock_set_back_stops_nothing():
    """Intervals are measured by a clock that cannot be set; others are told the time of day."""
    day = [5000.0]
    registry = ModelRegistry(Bounds(), lambda: 10.0, random.Random(0).random, lambda: day[0])
    registry.update(table([Deployment("ns", "d", ("m",))]))
    pool = registry.find("m").pool
    pool.counters.arrived(1)
    assert (pool.traffic().last_arrival, pool.clock()) == (5000.0, 10.0)
    day[0] = 3000.0
    pool.counters.arrived(1)
    assert (pool.traffic().last_arrival, pool.clock()) == (3000.0, 10.0)


def test_nothing_is_left_of_finished_requests():
    gateway = Gateway("a", "b")
    reservations = [gateway.ask(text(3000, n))[0] for n in range(20)]
    for reservation in reservations[:10]:
        reservation.first_token(0.1)
    gateway.report("a")
    for reservation in reservations[::-1]:
        gateway.end(reservation)
    for name in "ab":
        pod = gateway.pod(name)
        assert pod.load.in_flight == SentRequests()
    assert gateway.pod("b").load.since_report.prefill == 0


def test_a_pod_that_did_not_take_it_is_not_taken_to_have_it():
    gateway, prompt = Gateway("a", "b"), text(8000)
    reservation, _ = gateway.ask(prompt)
    gateway.end(reservation, Ending.REFUSED)
    assert gateway.ask(prompt)[0].matched == 0


def test_a_new_pod_at_an_old_address_has_nothing():
    gateway, prompt = Gateway("a"), text(8000)
    gateway.serve(prompt)
    gateway.report("a", cache=[prompt])
    gateway.has(new="a")
    assert gateway.ask(prompt)[0].matched == 0
    assert gateway.pool.router.index.hashes == 0


def test_a_pod_that_is_gone_leaves_nothing():
    gateway, prompt = Gateway("a", "b"), text(8000)
    gateway.report(gateway.serve(prompt), cache=[prompt])
    gateway.has()
    assert (gateway.registry.index.hashes, gateway.registry.index.assumed) == (0, 0)
    gateway.has("a", "b")
    gateway.serve(prompt)
    gateway.registry.update(table([]))
    assert (gateway.registry.index.hashes, gateway.registry.index.assumed) == (0, 0)


def test_a_restarted_pod_has_what_it_says_after_that():
    gateway, prompt = Gateway("a"), text(8000)
    gateway.serve(prompt)
    gateway.report("a", cache=[prompt])
    known = gateway.pool.router.index.sequence("http://a:8000")
    # Its sequence may happen to be one that the new process knows: the difference is to something else.
    gateway.report("a", start_time=2.0, after=known, cache=None)
    assert gateway.ask(prompt)[0].matched == 0
    gateway.report("a", start_time=2.0, cache=[prompt])
    assert gateway.ask(prompt)[0].matched > 1900


def _lie(**fields):
    return lambda gateway: gateway.report("a", **fields)


def _delta(gateway):
    gateway.report("a", cache=[text(200_000, 5)])


def _steps(gateway):
    gateway.report("a", steps=StepSums(count=100, seconds=1.0))
    gateway.report("a", steps=StepSums(count=50, seconds=float("nan")))


LIES = {
    "negative": ("load", _lie(running=-5)),
    "nan": ("load", _lie(oldest_wait=float("nan"))),
    "infinite": ("load", _lie(start_time=float("inf"))),
    "huge": ("load", _lie(waiting_tokens=10**30)),
    "pinned": ("load", _lie(blocks_pinned=BLOCKS + 1)),
    "no blocks": ("load", _lie(blocks_total=0)),
    "block size": ("load", _lie(block_size=0)),
    "no rows": ("load", _lie(max_running=0)),
    "more rows than it has": ("load", _lie(running=10**9)),
    "cache": ("cache", _delta),
    "steps": ("steps", _steps),
}


@pytest.mark.parametrize(("kind", "lie"), LIES.values(), ids=LIES)
def test_a_pod_that_lies_is_judged_by_what_was_sent_to_it(kind, lie, caplog):
    caplog.set_level(logging.WARNING)
    gateway = Gateway("a", "b")
    for _ in range(5):
        gateway.report("b")
        lie(gateway)
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("implausible load report of a")
    assert gateway.pool.reports.rejected == {kind: 5}
    reservations = [gateway.ask(text(3000, n)) for n in range(20)]
    assert 5 <= sum(name == "a" for _, name in reservations) <= 15
    gateway.report("a", cache=[], steps=StepSums(count=100_000))
    assert gateway.pod("a").report is not None


def test_before_an_answer_ends_it_is_not_all_that_was_generated():
    gateway = Gateway("a")
    for second in range(60):
        gateway.report("a", running=40, generation_tokens=2000 * second)
    assert gateway.pool.lengths.usual <= BLOCKS * BLOCK / 4


def test_embeddings_do_not_make_answers_look_shorter():
    gateway = Gateway("a")
    for second in range(60):
        answered, embedded = 4 * second, 400 * second
        gateway.report(
            "a", running=5, requests=answered + embedded, pooled_requests=embedded, generation_tokens=500 * answered
        )
    assert gateway.pool.lengths.usual == pytest.approx(500, rel=0.1)
    assert not gateway.pool.reports.rejected


def test_no_single_report_says_how_long_answers_are():
    gateway = Gateway("a")
    for second in range(20):
        gateway.report("a", running=5, requests=20 * second, generation_tokens=20 * 500 * second)
    usual = gateway.pool.lengths.usual
    gateway.report("a", running=5, requests=9000, generation_tokens=20 * 500 * 20)
    assert gateway.pool.lengths.usual > usual / 10
    gateway.report("a", running=5, requests=2**52, generation_tokens=20 * 500 * 20)
    assert gateway.pool.lengths.usual > usual / 10


def test_a_pod_that_lies_is_sent_no_more_than_it_last_said_to_hold():
    gateway = Gateway("a")
    gateway.report("a", max_running=7)
    pod = gateway.pod("a")
    honest = pod.headroom(gateway.now, 100.0, 1)
    LIES["nan"][1](gateway)
    for _ in range(7):
        pod.load.send(300, 200, 0.0)
    doubted = pod.headroom(gateway.now + 60, 100.0, 1)
    assert (doubted.pool, doubted.max_rows, doubted.rows, doubted.used) == (honest.pool, 7, 7, 2100)


def test_a_header_that_cannot_be_is_left_out(caplog):
    gateway, prompt = Gateway("a"), text(8000)
    for value in ("", "x", "1/2/3/4", "99999999999/16/", "2000/16/AAAA"):
        reservation, _ = gateway.ask(prompt)
        gateway.pool.answered(reservation, value)
        gateway.end(reservation)
    assert gateway.pool.reports.rejected == {"prompt": 5}
    assert len(caplog.records) == 1


async def test_pods_are_asked_and_clients_are_not_told(world):
    await world.start()
    pod = await world.pod()
    prompt = text(4000).decode()

    async def behave(request, data):
        assert request.headers["X-Octavo-Want-Prompt"] == "1"
        value = encode_prompt(describe(1200, BLOCK, hashes(text(4800))))
        usage = {"prompt_tokens": 1200, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 640}}
        return web.json_response({"usage": usage}, headers={"X-Octavo-Prompt": value})

    pod.behave = behave
    pool = world.has(pod.endpoint())
    for _ in range(2):
        async with world.post({"model": "m", "prompt": prompt}, "/v1/completions") as response:
            assert response.status == 200
            assert not [name for name in response.headers if name.lower().startswith("x-octavo")]
    assert pool.router.bytes_per_token.value < 4
    async with world.client.get(world.admin_url + "/metrics") as response:
        metrics = await response.text()
    assert 'octavo_gateway_prefix_tokens_total{kind="cached",model="m"} 1280.0' in metrics
    assert 'octavo_gateway_prefix_tokens_total{kind="all",model="m"} 2400.0' in metrics
    assert 'octavo_gateway_routed_requests_total{model="m",reason="only"} 2.0' in metrics
    assert 'octavo_gateway_prefix_index_entries{kind="texts"} 33.0' in metrics


async def test_sessions_are_read_from_their_header(world):
    await world.start()
    pods = [await world.pod() for _ in range(4)]
    endpoints = tuple(pod.endpoint() for pod in pods)
    deployment = Deployment(
        "ns", "d", ("m",), endpoints=endpoints, policy=Policy(SESSION), session_header="X-Conversation"
    )
    world.registry.update(table([deployment]))
    for number in range(12):
        async with world.post(headers={"x-conversation": "one"}) as response:
            assert response.status == 200
        async with world.post(headers={"x-conversation": str(number)}) as response:
            assert response.status == 200
    counts = sorted(len(pod.seen) for pod in pods)
    assert counts[-1] >= 12
    assert counts[-2] > 0


def test_annotations_say_how_to_route():
    def policy(**annotations):
        metadata = {
            "namespace": "ns", "name": "d", "labels": {"octavo.dev/llmdeployment": "d"},
            "annotations": {"octavo.dev/models": "m", **{f"octavo.dev/{k.replace('_', '-')}": v for k, v in
                                                         annotations.items()}},
        }  # fmt: skip
        return build([{"metadata": metadata}], []).find("m")

    assert policy().policy == Policy("PrefixAware", 1.25)
    found = policy(routing_strategy="Session", max_load_percent="150", session_header="x-chat")
    assert (found.policy, found.session_header) == (Policy("Session", 1.5), "x-chat")
    for percent in ("", "100", "-1", "x", "99999"):
        assert policy(routing_strategy="Fastest", max_load_percent=percent).policy == Policy()


def test_the_prompt_is_what_its_route_reads():
    head = read_head(b'{"model": "m", "messages": null, "prompt": "once"}', CHAT)
    assert (head.text(["messages"]), head.text(["prompt"])) == (b"", b'"once')
    head = read_head(b'{"model": "m", "messages": [{}], "prompt": "once"}', CHAT)
    assert (head.text(["messages"]), head.text(["prompt"])) == (b"[{}", b'"once')


def test_answers_that_come_in_one_piece_grow_by_the_reports():
    """What a pod has generated is in its pinned blocks: it must not be expected once more."""
    gateway = Gateway("a")
    seen, unseen = gateway.ask(text(400, 1))[0], gateway.ask(text(400, 2))[0]
    unseen.sent(streamed=False)
    gateway.report("a", running=2)
    late = gateway.ask(text(400, 3))[0]
    late.sent(streamed=False)
    gateway.report("a", running=3, generation_tokens=60)
    assert [reservation.generated for reservation in (seen, unseen, late)] == [0, 20, 0]
    gateway.report("a", running=3, generation_tokens=120)
    assert [reservation.generated for reservation in (seen, unseen, late)] == [0, 40, 20]
    gateway.report("a", running=1, generation_tokens=1100)
    assert unseen.in_flight.left == 0
    for reservation in (seen, unseen, late):
        gateway.end(reservation)
    assert gateway.pod("a").load.growth == pytest.approx(0)
    assert not gateway.pod("a").load.unseen


def test_what_a_report_says_is_made_ready_once_for_all_requests():
    gateway = Gateway("a", "b")
    gateway.report("a", running=3)
    pod = gateway.pod("a")
    known = pod.candidate(gateway.now).report
    assert known.rows == 3
    assert pod.candidate(gateway.now + 1).report is known
    assert pod.candidate(gateway.now + 6).report is None
    gateway.report("a", running=4)
    assert pod.candidate(gateway.now).report.rows == 4
    gateway.report("a", blocks_pinned=BLOCKS + 1)
    assert (pod.report, pod.candidate(gateway.now).report) == (None, None)
