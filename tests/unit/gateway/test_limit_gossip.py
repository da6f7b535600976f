"""Limits that several gateways keep together."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.gateway.conftest import World

from octavo_gateway.access.api_keys import opaque
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.access.limit_gossip import FORGOTTEN_SECONDS, MOST_GATEWAYS, GossipMessage, LimitGossip, Taken
from octavo_gateway.access.rate_limits import Accounts, RateLimits
from octavo_gateway.app.peer_client import PeerClient
from octavo_gateway.app.run import replica_session

NAME = "team-a"


class Gateways:
    """Some gateways under virtual time, which ask each other once a second, each at a time of its own."""

    def __init__(self, count: int, limits: RateLimits, phases: list[float] | None = None) -> None:
        self.now = 0.0
        self.limits = limits
        self.gossips = [self.fresh(f"g{index}") for index in range(count)]
        self.phases = phases or [0.0] * count
        self.cut: set[int] = set()
        for index in range(count):
            self.round(index)

    def fresh(self, name: str) -> LimitGossip:
        accounts = Accounts()
        accounts.limit_by({NAME: self.limits}, self.now)
        return LimitGossip(accounts, name)

    def account(self, index: int):
        return self.gossips[index]._accounts.known[NAME]

    def round(self, index: int) -> tuple[int, int]:
        gossip = self.gossips[index]
        others = [other for other in range(len(self.gossips)) if other != index]
        for other in others:
            if index not in self.cut and other not in self.cut:
                gossip.receive(self.gossips[other].message(self.now), self.now)
        return gossip.share_out([self.gossips[other].id for other in others], self.now)

    def advance(self, seconds: float) -> None:
        """Time passes; rounds are held when they are due."""
        before, self.now = self.now, self.now + seconds
        for index, phase in enumerate(self.phases):
            if int(before - phase) != int(self.now - phase):
                self.round(index)

    def take(self, index: int, tokens: int = 1) -> bool:
        if self.account(index).enter(tokens, self.now) is None:
            self.account(index).leave(0)
            return True
        return False


def test_only_hashes_of_names_are_told():
    all_of_them = Gateways(1, RateLimits(requests=60))
    all_of_them.take(0)
    word = all_of_them.gossips[0].message(0.0)
    assert set(word.keys) == {opaque("account", NAME)}
    assert NAME not in str(word)


def test_a_key_that_is_as_new_is_not_told():
    all_of_them = Gateways(1, RateLimits(requests=60))
    all_of_them.take(0)
    assert all_of_them.gossips[0].message(0.5).keys
    assert not all_of_them.gossips[0].message(2.0).keys


@pytest.mark.parametrize("count", [2, 3])
def test_one_limit_whatever_gateway_is_asked(count):
    """Ten a second of a key of sixty a minute, spread over the gateways, for ten minutes."""
    all_of_them = Gateways(count, RateLimits(requests=60), [index / count for index in range(count)])
    chance = random.Random(1)
    let_in = 0
    for _ in range(6000):
        all_of_them.advance(0.1)
        let_in += all_of_them.take(chance.randrange(count))
    assert 60 * 10 <= let_in <= 60 * 11 + count


def test_one_gateway_gets_all_when_the_others_get_nothing():
    all_of_them = Gateways(3, RateLimits(requests=60), [0.0, 0.3, 0.6])
    let_in = 0
    for _ in range(1200):
        all_of_them.advance(0.1)
        let_in += all_of_them.take(0)
    assert let_in >= 60 * 2 * 0.95


@settings(max_examples=scaled(80), deadline=None)
@given(
    count=st.integers(2, 5),
    phases=st.lists(st.floats(0, 0.99), min_size=5, max_size=5),
    limit=st.sampled_from([6, 60, 600]),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400), st.floats(0, 2)), max_size=60),
)
def test_the_overshoot_is_bounded(count, phases, limit, steps):
    """Wherever and whenever it is asked for: no more than a quarter of the limit and a request for each beyond it."""
    all_of_them = Gateways(count, RateLimits(requests=limit), phases[:count])
    times: list[float] = []
    for index, asked, pause in steps:
        for _ in range(asked):
            if not all_of_them.take(index % count):
                break
            times.append(all_of_them.now)
        for _ in range(10):
            all_of_them.advance(pause / 10)
    for first in range(0, len(times), 5):
        window = times[-1] - times[first]
        assert len(times) - first <= limit * (1 + window / 60) + limit / 4 + count


def test_a_silent_gateway_keeps_its_part_and_comes_back():
    all_of_them = Gateways(2, RateLimits(requests=60))
    all_of_them.cut = {1}
    for _ in range(60):
        all_of_them.advance(1.0)
        for index in range(2):
            while all_of_them.take(index):
                pass
    before = [all_of_them.account(index).requests.taken for index in range(2)]
    for _ in range(600):
        all_of_them.advance(1.0)
        for index in range(2):
            while all_of_them.take(index):
                pass
    after = [all_of_them.account(index).requests.taken for index in range(2)]
    assert [a - b for a, b in zip(after, before, strict=True)] == pytest.approx([300, 300], abs=2)
    all_of_them.cut = set()
    # What both took meanwhile is told, and paid for: it was no more than the limit but for one bucket.
    all_of_them.advance(1.0)
    for _ in range(120):
        all_of_them.advance(1.0)
        all_of_them.take(0)
    assert all_of_them.account(1).requests.taken == after[1]
    assert all_of_them.account(0).requests.level == pytest.approx(all_of_them.account(1).requests.level, abs=1.01)


@pytest.mark.parametrize("count", [2, 3])
def test_gateways_that_lose_each_other_keep_the_limit(count):
    all_of_them = Gateways(count, RateLimits(requests=60), [index / count for index in range(count)])
    all_of_them.cut = set(range(count))
    for seconds in range(1, 121):
        for _ in range(4):
            all_of_them.advance(0.25)
            for index in range(count):
                while all_of_them.take(index):
                    pass
        taken = sum(all_of_them.account(index).requests.taken for index in range(count))
        assert taken <= 60 + seconds + 60 / 4 + count
    assert taken >= 60 + 120 - count


def test_a_pause_of_one_gateway_costs_the_others_nothing_later():
    all_of_them = Gateways(2, RateLimits(requests=60))
    all_of_them.cut = {1}
    for _ in range(5):
        all_of_them.advance(1.0)
    assert all_of_them.account(0).requests.level == pytest.approx(30)
    all_of_them.cut = set()
    for _ in range(2):
        all_of_them.advance(1.0)
    assert [all_of_them.account(index).requests.level for index in range(2)] == [pytest.approx(60)] * 2


def test_a_gateway_that_restarts_does_not_bring_a_full_bucket():
    all_of_them = Gateways(2, RateLimits(requests=60))
    while all_of_them.take(0) or all_of_them.take(1) or all_of_them.now < 2:
        all_of_them.advance(0.5)
    taken = all_of_them.account(0).requests.taken
    all_of_them.gossips[1] = all_of_them.fresh("g1-again")
    all_of_them.round(1)
    all_of_them.round(0)
    assert all_of_them.account(1).requests.level < 5
    assert all_of_them.account(0).requests.taken == taken
    assert all_of_them.account(0).requests.level < 5


def test_of_a_gateway_heard_for_the_first_time_only_what_is_left_counts():
    one = Gateways(1, RateLimits(requests=60))

    def hear(taken: float, left: float) -> float:
        word = GossipMessage(id="old", keys={opaque("account", NAME): Taken(taken, 0.0, 0, requests_left=left)})
        one.gossips[0].receive(word, one.now)
        return one.account(0).requests.level

    assert hear(5000.0, 40.0) == 40.0
    assert hear(5003.0, 37.0) == 37.0


def test_requests_at_a_time_are_counted_together():
    all_of_them = Gateways(2, RateLimits(concurrent=10))
    chance = random.Random(3)
    for _ in range(200):
        all_of_them.account(chance.randrange(2)).enter(1, all_of_them.now)
        all_of_them.advance(0.1)
    assert sum(all_of_them.account(index).open for index in range(2)) in {10, 11}
    for _ in range(5):
        all_of_them.account(0).leave(0)
    assert all_of_them.account(0).enter(1, all_of_them.now) is None
    all_of_them.advance(1.0)
    all_of_them.advance(1.0)
    entered = sum(all_of_them.account(1).enter(1, all_of_them.now) is None for _ in range(10))
    assert 1 <= entered <= 5


def test_strangers_cannot_fill_the_memory():
    all_of_them = Gateways(1, RateLimits(requests=60))
    gossip = all_of_them.gossips[0]
    for index in range(2 * MOST_GATEWAYS):
        gossip.receive(GossipMessage(id=f"x{index}", keys={"unknown": Taken(1.0, 1.0, 1)}), 0.0)
    assert len(gossip._peers) == MOST_GATEWAYS
    gossip.share_out([], FORGOTTEN_SECONDS)
    assert not gossip._peers


async def test_two_gateways_over_http(tmp_path):
    path = tmp_path / "keys"
    path.write_text("keys:\n- {name: a, key: alpha, requestsPerMinute: 10}")
    headers = {"Authorization": "Bearer alpha"}
    async with AsyncExitStack() as stack:
        worlds = [World(stack), World(stack)]
        session = await stack.enter_async_context(replica_session())
        for world in worlds:
            await world.start(keys=KeyFile(path))
            pod = await world.pod()
            world.has(pod.endpoint())
        ports = [("127.0.0.1", int(world.admin_url.rpartition(":")[2])) for world in worlds]
        peers = [
            PeerClient(world.gossip, session, ports, world.ticks, world.metrics, world.registry.shared_by)
            for world in worlds
        ]
        # The first knows at once that it is not alone: it takes half until it has heard the other one.
        statuses = []
        for _ in range(12):
            for one in peers:
                await one.round()
            for world in worlds:
                async with world.post(headers=headers) as response:
                    statuses.append(response.status)
        assert statuses.count(200) in {10, 11}
        assert [world.registry.find("m").pool.selector.gateways for world in worlds] == [2, 2]
        sample = worlds[0].metrics.registry.get_sample_value
        assert sample("octavo_gateway_gateways", {"state": "heard"}) == 2
        async with session.get(worlds[0].admin_url + "/v1/octavo/peers") as response:
            text = await response.text()
        assert opaque("account", "a") in text
        assert "alpha" not in text
        async with session.get(worlds[0].url + "/v1/octavo/peers", headers=headers) as response:
            assert response.status == 404


async def test_a_word_that_comes_in_pieces_is_heard_whole():
    word = msgspec.json.encode(GossipMessage(id="other", keys={f"key{n}": Taken(1.0, 1.0, 1) for n in range(3000)}))

    async def say(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(word), 16384):
            await response.write(word[start : start + 16384])
            await asyncio.sleep(0.001)
        return response

    async with AsyncExitStack() as stack:
        world = World(stack)
        session = await stack.enter_async_context(replica_session())
        await world.start()
        app = web.Application()
        app.router.add_get("/v1/octavo/peers", say)
        port = int((await world.serve(app)).rpartition(":")[2])
        peers = PeerClient(
            world.gossip, session, [("127.0.0.1", port)], world.ticks, world.metrics, world.registry.shared_by,
        )  # fmt: skip
        await peers.round()
        sample = world.metrics.registry.get_sample_value
        assert sample("octavo_gateway_gateways", {"state": "silent"}) == 0
        assert "other" in world.gossip._peers


async def test_only_a_gateway_that_stays_silent_is_worth_a_warning(caplog):
    async with AsyncExitStack() as stack:
        world = World(stack)
        session = await stack.enter_async_context(replica_session())
        await world.start()
        peers = PeerClient(
            world.gossip, session, [("127.0.0.1", 1)], world.ticks, world.metrics, world.registry.shared_by,
        )  # fmt: skip
        await peers.round()
        assert not caplog.records
        await peers.round()
        await peers.round()
        assert [record.getMessage() for record in caplog.records] == ["unreachable gateways: 127.0.0.1:1"]


async def test_a_word_that_nobody_foresaw_is_no_end(caplog):
    async def deep(request: web.Request) -> web.Response:
        return web.Response(body=b'{"deep": ' + b"[" * 200_000)

    async def well(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(GossipMessage(id="other")))

    async with AsyncExitStack() as stack:
        world = World(stack)
        session = await stack.enter_async_context(replica_session())
        await world.start()
        ports = []
        for say in (deep, well):
            app = web.Application()
            app.router.add_get("/v1/octavo/peers", say)
            ports.append(("127.0.0.1", int((await world.serve(app)).rpartition(":")[2])))
        peers = PeerClient(world.gossip, session, ports, world.ticks, world.metrics, world.registry.shared_by)
        await peers.round()
        await peers.round()
        sample = world.metrics.registry.get_sample_value
        assert (sample("octavo_gateway_gateways", {"state": "heard"}), sample("octavo_gateway_peer_errors_total")) == (
            2,
            2,
        )
        assert len([record for record in caplog.records if "RecursionError" in record.getMessage()]) == 1


async def test_a_gateway_that_is_not_there_halves_the_limit(tmp_path):
    path = tmp_path / "keys"
    path.write_text("keys:\n- {name: a, key: alpha, requestsPerMinute: 10}")
    async with AsyncExitStack() as stack:
        world = World(stack)
        session = await stack.enter_async_context(replica_session())
        await world.start(keys=KeyFile(path))
        pod = await world.pod()
        world.has(pod.endpoint())
        own = int(world.admin_url.rpartition(":")[2])
        peers = PeerClient(
            world.gossip, session, [("127.0.0.1", own), ("127.0.0.1", 1)], world.ticks, world.metrics,
            world.registry.shared_by,
        )  # fmt: skip
        await asyncio.wait_for(peers.round(), 5)
        statuses = []
        for _ in range(8):
            async with world.post(headers={"Authorization": "Bearer alpha"}) as response:
                statuses.append(response.status)
        assert statuses.count(200) == 5
