"""`prompt_cache_key`: requests with the same key prefer one replica, as long as load allows it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from octavo_gateway.api.request_head import MAX_CACHE_KEY, read_head
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.reservation import Ending, RequestOutcome
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.candidate import LEAST_LOAD, PREFIX_AWARE, ROUND_ROBIN, Policy
from octavo_protocol.routes import route

CHAT = route("POST", "/v1/chat/completions")


def text(seed, size=400):
    return random.Random(seed).randbytes(size // 2).hex().encode()


def pool(seed=0, strategy=PREFIX_AWARE, replicas=5):
    registry = ModelRegistry(Bounds(), lambda: 1000.0, random.Random(seed).random)
    ends = tuple(Endpoint(f"pod-{index}", f"http://pod-{index}") for index in range(replicas))
    registry.update(table([Deployment("ns", "d", ("m",), True, endpoints=ends, policy=Policy(strategy))]))
    return registry.find("m").pool


def place(one, data, key=b"", tenant="t"):
    """The reservation of a prompt, which stays in flight."""
    return one.reserve(one.prompt(data, tenant, b"", None, key))


def home(one, data, key=b"", tenant="t"):
    """The replica of a prompt, whose answer ends at once."""
    reservation = place(one, data, key, tenant)
    one.settle(RequestOutcome(reservation, Ending.FINISHED, 100, 1))
    return reservation.replica.endpoint.name


def test_prompts_with_nothing_in_common_meet_on_one_replica():
    one = pool()
    assert len({home(one, text(seed), b"k") for seed in range(20)}) == 1
    assert len({home(one, text(seed)) for seed in range(100, 120)}) > 1


@pytest.mark.parametrize("size", [8, 60, 400, 40_000])
def test_short_and_long_prompts_meet_too(size):
    one = pool()
    assert home(one, text(1, size), b"k") == home(one, text(2, size), b"k")


def test_every_gateway_picks_the_same_replica():
    assert len({home(pool(seed), text(seed), b"k") for seed in range(8)}) == 1


def test_keys_are_spread_over_the_replicas():
    one = pool()
    assert len({home(one, text(seed), b"key %d" % seed) for seed in range(30)}) == 5


def test_tenants_with_the_same_key_have_nothing_in_common():
    one = pool()
    assert len({home(one, text(1), b"k", tenant) for tenant in "abcdefgh"}) > 1


def test_load_still_decides():
    one = pool()
    places = Counter(place(one, text(seed), b"k").replica.endpoint.name for seed in range(50))
    assert len(places) == 5
    assert max(places.values()) < 25


def test_a_long_cached_prefix_elsewhere_is_worth_more():
    one = pool()
    shared = text(1, 60_000)
    first = home(one, shared)
    keys = [key for key in (b"%d" % number for number in range(50)) if home(pool(), text(9), key) != first]
    assert len(keys) > 20
    assert {home(one, shared + text(2), key) for key in keys} == {first}


@pytest.mark.parametrize("strategy", [LEAST_LOAD, ROUND_ROBIN])
def test_strategies_without_affinity_ignore_the_key(strategy):
    one = pool(strategy=strategy)
    assert len({home(one, text(seed), b"k") for seed in range(20)}) > 1


def test_the_reason_is_named():
    assert place(pool(), text(1), b"k").choice.reason == "cache_key"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ('"k"', b"k"),
        ('"\\u00e9"', "é".encode()),
        ('""', b""),
        ("null", b""),
        ("5", b""),
        (f'"{"k" * MAX_CACHE_KEY}"', b"k" * MAX_CACHE_KEY),
        (f'"{"k" * (MAX_CACHE_KEY + 1)}"', b""),
    ],
)
def test_the_key_comes_from_the_body(given, key):
    assert read_head(f'{{"model":"m","prompt_cache_key":{given}}}'.encode(), CHAT).cache_key() == key
