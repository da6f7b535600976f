"""The store of responses: bounds, order of removal, tenants and time to live."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.support.waiting import eventually_async

from octavo_inference.server.openai_responses import store as store_module
from octavo_inference.server.openai_responses.items import AnswerText, ItemText, MessageItem
from octavo_inference.server.openai_responses.resource import ReasoningSettings, ResponseObject
from octavo_inference.server.openai_responses.store import ResponseStore, StoredResponse, StoreLimits


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A response of the background that has generated `size` bytes."""

    size = 0
    started = True


def response(name: str, text: str = "hello", status: str = "completed") -> ResponseObject:
    output = [MessageItem(f"out-{name}", "assistant", [AnswerText(text)])] if status == "completed" else []
    return ResponseObject(
        id=name,
        created_at=1,
        status=status,
        background=status != "completed",
        instructions=None,
        max_output_tokens=None,
        max_tool_calls=None,
        model="m",
        output=output,
        parallel_tool_calls=True,
        previous_response_id=None,
        prompt_cache_key=None,
        reasoning=ReasoningSettings(),
        safety_identifier=None,
        store=True,
        temperature=1.0,
        tool_choice="auto",
        top_logprobs=0,
        top_p=1.0,
        truncation="disabled",
        user=None,
        metadata={},
    )


def entry(
    tenant: str,
    name: str,
    text: str = "hello",
    status: str = "completed",
    run: object = None,
    question: str = "hello",
) -> StoredResponse:
    items = [MessageItem("shared", "user", [ItemText("Hi")]), MessageItem(f"in-{name}", "user", [ItemText(question)])]
    return StoredResponse.of(tenant, items, response(name, text, status), run)


def store(
    entries: int = 10, size: int = 2**20, ttl: float = 100.0, percent: int = 100, clock: object = None
) -> ResponseStore:
    return ResponseStore(StoreLimits(entries, size, ttl, percent), clock or Clock())


def finish(kept: ResponseStore, running: StoredResponse, final: ResponseObject) -> None:
    kept.finish(running, final, msgspec.json.encode(final))


def test_what_is_put_is_found_with_its_conversation() -> None:
    kept = store()
    assert kept.put(entry("a", "1"))
    found = kept.get("a", "1")
    assert msgspec.json.decode(found.current(), type=ResponseObject) == response("1")
    assert [item.text for item in found.conversation()] == ["Hi", "hello", "hello"]


def test_tenants_do_not_see_each_other() -> None:
    kept = store()
    kept.put(entry("a", "1"))
    assert kept.get("b", "1") is None
    assert kept.responses_with("b", ["in-1"]) == set()
    assert kept.remove("b", "1") is None
    assert kept.get("a", "1") is not None


def test_the_least_recently_used_one_goes_first() -> None:
    kept = store(entries=2)
    for name in "12":
        kept.put(entry("a", name))
    kept.get("a", "1")
    kept.put(entry("a", "3"))
    assert [kept.get("a", name) is not None for name in "123"] == [True, False, True]


def test_a_tenant_at_its_share_removes_its_own_responses() -> None:
    kept = store(entries=4, percent=50)
    kept.put(entry("b", "b1"))
    for name in ("a1", "a2", "a3"):
        kept.put(entry("a", name))
    assert kept.get("b", "b1") is not None
    assert [kept.get("a", name) is not None for name in ("a1", "a2", "a3")] == [False, True, True]


def test_bytes_are_a_bound_too() -> None:
    size = entry("a", "1").size
    kept = store(size=2 * size)
    for name in "123":
        assert kept.put(entry("a", name))
    assert len(kept) == 2
    assert not kept.put(entry("a", "4", "x" * 2 * size))
    assert len(kept) == 2


def test_a_response_lives_as_long_as_set() -> None:
    clock = Clock()
    kept = store(ttl=5, clock=clock)
    kept.put(entry("a", "1"))
    clock.now = 4.9
    assert kept.get("a", "1") is not None
    clock.now = 5.0
    assert kept.get("a", "1") is None
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_conversation_may_have_an_eighth_of_a_tenants_bytes() -> None:
    kept = store(size=80_000)
    assert kept.put(entry("a", "1", question="x" * 9_000))
    assert not kept.put(entry("a", "2", question="x" * 10_001))


def test_entries_0_turns_it_off() -> None:
    kept = store(entries=0)
    assert not kept.enabled
    assert not kept.put(entry("a", "1"))


def test_a_running_response_stays_whatever_comes() -> None:
    clock = Clock()
    kept = store(entries=2, ttl=5, clock=clock)
    running = entry("a", "1", status="queued", run=Run())
    kept.put(running)
    clock.now = 10.0
    for name in "234":
        assert kept.put(entry("a", name))
    assert kept.get("a", "1") is running
    assert len(kept) == 2


def test_there_is_no_room_next_to_running_responses_alone() -> None:
    kept = store(entries=1)
    kept.put(entry("a", "1", status="queued", run=Run()))
    assert not kept.put(entry("a", "2"))
    assert not kept.put(entry("b", "3"))


def test_a_running_response_grows_at_the_cost_of_finished_ones_up_to_the_bound() -> None:
    size = entry("a", "1").size
    kept = store(size=3 * size)
    run = Run()
    running = entry("a", "1", status="queued", run=run)
    kept.put(running)
    kept.put(entry("a", "2"))
    run.size = 2 * size
    assert kept.grew(running)
    assert kept.get("a", "2") is None
    run.size = 4 * size
    assert not kept.grew(running)
    assert kept.bytes <= 3 * size


def test_the_end_of_a_running_response_takes_its_place() -> None:
    kept = store()
    running = entry("a", "1", status="queued", run=Run())
    kept.put(running)
    finish(kept, running, response("1"))
    assert b'"completed"' in kept.get("a", "1").current()
    assert kept.responses_with("a", ["out-1"]) == {"1"}
    assert len(kept) == 1


def test_the_end_of_a_removed_response_leaves_no_trace() -> None:
    kept = store()
    running = entry("a", "1", status="queued", run=Run())
    kept.put(running)
    kept.remove("a", "1")
    finish(kept, running, response("1"))
    assert (len(kept), kept.bytes) == (0, 0)


def test_an_item_is_found_as_long_as_a_response_has_it() -> None:
    kept = store()
    kept.put(entry("a", "1"))
    assert kept.responses_with("a", ["in-1", "out-1", "in-2"]) == {"1"}
    kept.remove("a", "1")
    assert kept.responses_with("a", ["in-1"]) == set()


STEP = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 6000)),
    st.tuples(st.just("run"), st.sampled_from("abc"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("grow"), st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 6000)),
    st.tuples(st.just("finish"), st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 2000)),
    st.tuples(st.just("get"), st.sampled_from("abc"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("items"), st.sampled_from("abc"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("remove"), st.sampled_from("abc"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.just(0), st.integers(0, 60)),
)


@settings(max_examples=scaled(300), deadline=None)
@given(
    steps=st.lists(STEP, max_size=60),
    limits=st.builds(StoreLimits, st.integers(1, 6), st.integers(2000, 20_000), st.just(50.0), st.integers(1, 100)),
)
def test_bounds_hold_for_any_sequence(steps: list[tuple[str, str, int, int]], limits: StoreLimits) -> None:
    clock = Clock()
    kept = ResponseStore(limits, clock)
    for what, tenant, number, amount in steps:
        name = f"{tenant}{number}"
        if what == "put":
            kept.put(entry(tenant, name, "x" * amount))
        elif what == "run":
            kept.put(entry(tenant, name, status="queued", run=Run()))
        elif what == "wait":
            clock.now += amount
        elif what == "get":
            kept.get(tenant, name)
        elif what == "remove":
            kept.remove(tenant, name)
        elif what == "items":
            for found_id in kept.responses_with(tenant, [f"in-{name}", "shared"]):
                assert kept.get(tenant, found_id) is not None
        elif (found := kept.get(tenant, name)) is not None and not found.is_final:
            if what == "grow":
                before, found.run.size = found.run.size, amount
                if not kept.grew(found):
                    found.run.size = before
            else:
                finish(kept, found, response(name, "x" * amount))
        check(kept, limits)


def check(kept: ResponseStore, limits: StoreLimits) -> None:
    entries = list(kept._entries.values())
    assert kept.bytes == sum(each.counted for each in entries) <= limits.bytes
    assert len(entries) <= limits.entries
    for tenant in {each.tenant for each in entries}:
        mine = [each for each in entries if each.tenant == tenant]
        assert len(mine) <= limits.tenant_entries
        assert sum(each.counted for each in mine) <= limits.tenant_bytes
    assert all(each.counted == each.size for each in entries)
    assert set(kept._finished) == {(each.tenant, each.id) for each in entries if each.is_final}
    assert set(kept._by_item.values()) <= {each.id for each in entries}
    assert set(kept._shares) == {each.tenant for each in entries}


@pytest.mark.parametrize("status", ["queued", "completed"])
def test_size_counts_at_least_the_json(status: str) -> None:
    made = entry("a", "1", "x" * 1000, status, Run() if status == "queued" else None)
    assert made.size >= len(msgspec.json.encode(made.items())) + len(made.response)


async def test_old_responses_go_without_requests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    kept = store(ttl=5, clock=clock)
    kept.put(entry("a", "1"))
    monkeypatch.setattr(store_module, "EXPIRY_SECONDS", 0.001)
    task = asyncio.ensure_future(store_module.expire_regularly(kept))
    clock.now = 6.0
    await eventually_async(lambda: not len(kept))
    task.cancel()
    assert kept.bytes == 0
