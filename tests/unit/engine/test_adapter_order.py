"""The slot of an adapter goes to the request that the scheduler would serve next, and none waits forever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.fair_queue import AGING_SECONDS, FairQueue, Place
from octavo_inference.core.adapters import AdapterPool, Granted
from octavo_inference.core.request import Output, Request, SamplingParams

from .echo import EchoBackend
from .test_adapters import Reader, Server


def submit(server: Server, name: str, adapter: int, tokens: int = 4, priority: int = 0, tenant: str = "") -> None:
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, seed=1)
    key = str(adapter) if adapter else ""
    server.engine.submit(
        Request(id=name, tokens=[1, 2, 3], sampling=sampling, adapter=key, priority=priority, tenant=tenant)
    )


def begun(outputs: dict[str, list[Output]], *names: str) -> list[str]:
    """Those of the names that have outputs, in the order of their first."""
    return [name for name in outputs if name in names]


def test_a_request_of_higher_priority_gets_the_slot_first() -> None:
    server = Server(slots=1)
    server.offer(1, 2, 3, 4)
    submit(server, "runs", 1, tokens=10)
    submit(server, "low", 2, priority=-1)
    submit(server, "first", 3)
    submit(server, "high", 4, priority=2)
    assert begun(server.run(), "low", "first", "high") == ["high", "first", "low"]


def test_a_request_that_has_waited_long_is_before_a_new_one_of_higher_priority() -> None:
    server = Server(slots=1)
    server.offer(1, 2, 3)
    submit(server, "runs", 1, tokens=10)
    submit(server, "old", 2)
    server.time += 2 * AGING_SECONDS
    submit(server, "new", 3, priority=1)
    assert begun(server.run(), "old", "new") == ["old", "new"]


def test_tenants_share_a_slot_whatever_their_number_of_adapters() -> None:
    server = Server(slots=1)
    server.offer(1, 2, 3, 4)
    submit(server, "runs", 1, tokens=30, tenant="busy")
    for adapter in (2, 3, 2, 3):
        submit(server, f"busy{adapter}{len(server.engine.adapters.waiting)}", adapter, tenant="busy")
    for _ in range(5):
        server.engine.step()
    submit(server, "other", 4, tenant="other")
    names = list(server.run())
    assert names.index("other") < min(names.index(name) for name in names if name.startswith("busy"))


def test_a_tenant_that_waits_for_an_adapter_keeps_its_turn_for_the_model() -> None:
    """It was not idle: its counter is not lifted to those of the tenants that were served meanwhile."""
    server = Server(slots=1, rows=1)
    server.offer(1, 2)
    submit(server, "runs", 1, tokens=30, tenant="busy")
    server.engine.step()
    submit(server, "waits", 2, tenant="other")
    for number in range(3):
        submit(server, f"more{number}", 0, tenant="busy")
    before = server.engine.scheduler.queue.counter.served("other")
    submit(server, "too", 0, tenant="other")
    assert server.engine.scheduler.queue.counter.served("other") == before
    names = list(server.run())
    assert names.index("too") < names.index("more0")


def read_pool(slots: int, order: FairQueue[str]) -> AdapterPool:
    """Five adapters that have been read."""
    pool = AdapterPool(EchoBackend(64, adapter_slots=slots), Reader(), 32, None, order)
    for key in "01234":
        pool.offer(key, key)
        while "loading" in [state.state for state in pool.changes() or []]:
            pool.wait()
            assert not list(pool.advance(0.0))
    return pool


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 4), st.integers(-1, 2), st.sampled_from("abc"), st.integers(0, 15)),
        st.tuples(st.just("turn"), st.integers(0, 40)),
    ),
    max_size=60,
)


@settings(max_examples=scaled(100), deadline=None)
@given(EVENTS, st.integers(1, 3))
def test_each_free_slot_goes_to_the_adapter_of_the_head_of_the_queue(events: list, slots: int) -> None:
    order: FairQueue[str] = FairQueue()
    queue: FairQueue[str] = FairQueue()
    pool = read_pool(slots, order)
    adapters: dict[str, str] = {}
    runs: list[str] = []
    now = 0.0

    def turn(charge: int) -> None:
        """The requests of one adapter end, and others begin where that makes room."""
        done = [name for name in runs if adapters[name] == adapters[runs[0]]] if runs else []
        for name in done:
            runs.remove(name)
            pool.finished(name)
        granted = []
        for found in pool.advance(now):
            assert isinstance(found, Granted)
            granted.append(found.request_id)
        while granted:
            head = queue.head(now)
            assert head is not None
            assert adapters[head] == adapters[granted[0]]
            for name in [name for name in queue if adapters[name] == adapters[head]]:
                queue.remove(name)
                granted.remove(name)
                runs.append(name)
        for each in (queue, order):
            each.counter.charge("abc"[charge % 3], charge)
        assert len({adapters[name] for name in runs}) <= slots

    for number, (what, *rest) in enumerate(events):
        if what == "begin":
            key, priority, tenant, wait = rest
            now += wait
            name = str(number)
            adapters[name] = str(key)
            place = Place(tenant, priority, now, number)
            if pool.begin(name, str(key), place) is None:
                queue.push(name, place)
            else:
                runs.append(name)
        else:
            turn(rest[0])
    rounds = 0
    while len(queue) or runs:
        turn(1)
        rounds += 1
        assert rounds <= 2 * len(events), "some wait forever"
    assert not pool.waiting
    pool.close()


@settings(max_examples=scaled(20), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=6))
def test_none_waits_forever_behind_streams_of_higher_priority(stream: list[tuple[int, int, str]]) -> None:
    server = Server(slots=1)
    server.offer(1, 2, 3)
    submit(server, "runs", 1, tokens=5)
    server.engine.step()
    submit(server, "waits", 3, priority=-1, tenant="c")
    for step in range(100):
        server.time += 1
        adapter, priority, tenant = stream[step % len(stream)]
        if len(server.engine.adapters.waiting) < 10:
            submit(server, f"more{step}", adapter, tokens=3, priority=priority, tenant=tenant)
        if any(output.id == "waits" for output in server.engine.step()):
            return
    raise AssertionError("it waited for more than 100 s, which is longer than ten levels of priority")
