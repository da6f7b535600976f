"""The order of requests that wait, and the counters behind the turns of tenants."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.fair_queue import AGING_SECONDS, FairQueue, Place, level
from octavo_common.virtual_token_counter import MOST_TENANTS, VirtualTokenCounter, cost


def test_generated_tokens_count_twice() -> None:
    assert cost(100, 30) == 160


def test_who_arrives_starts_at_the_least_of_those_who_wait() -> None:
    counter = VirtualTokenCounter()
    counter.choose("a", 100)
    counter.choose("b", 300)
    counter.arrive("c", ["a", "b"])
    assert counter.served("c") == 100


def test_who_arrives_alone_starts_where_the_last_one_was_chosen() -> None:
    counter = VirtualTokenCounter()
    for _ in range(5):
        counter.choose("a", 100)
    counter.arrive("b", [])
    assert counter.served("b") == 400


def test_who_had_more_keeps_it() -> None:
    counter = VirtualTokenCounter()
    counter.choose("a", 1000)
    counter.arrive("a", ["b"])
    assert counter.served("a") == 1000


def test_what_was_charged_too_much_is_given_back() -> None:
    counter = VirtualTokenCounter()
    counter.choose("a", 500)
    counter.charge("a", -400)
    assert counter.served("a") == 100


def test_the_number_of_counters_is_bounded() -> None:
    counter = VirtualTokenCounter()
    for index in range(3 * MOST_TENANTS):
        counter.arrive(f"t{index}", [])
        counter.choose(f"t{index}", 1)
    assert len(counter) <= MOST_TENANTS + 1


def test_an_entry_that_comes_back_has_its_old_place_and_its_tenant_its_counter() -> None:
    queue: FairQueue[str] = FairQueue()
    places = {name: Place("a", 0, 0.0, number) for number, name in enumerate(("first", "second"))}
    for name, place in places.items():
        queue.push(name, place)
    assert queue.head(0.0) == "first"
    queue.remove("first")
    queue.push("first", places["first"], returning=True)
    assert queue.head(0.0) == "first"
    queue.remove("first")
    queue.remove("second")
    queue.push("other", Place("b", 0, 0.0, 2))
    queue.counter.choose("b", 50)
    queue.counter.charge("b", 50)
    queue.push("second", places["second"], returning=True)
    assert queue.counter.served("a") == 0


def test_a_tenant_in_one_of_two_queues_is_not_idle() -> None:
    first: FairQueue[str] = FairQueue()
    second: FairQueue[int] = FairQueue(first)
    first.push("waits", Place("a", 0, 0.0, 0))
    second.push(1, Place("b", 0, 0.0, 1))
    second.counter.choose("b", 50)
    second.push(2, Place("a", 0, 0.0, 2))
    assert second.head(0.0) == 2, "its counter is not lifted to that of the other one"
    second.remove(2)
    first.remove("waits")
    second.push(3, Place("a", 0, 0.0, 3))
    assert first.counter.served("a") == 50, "idle in both, it gains no credit"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abcd"), st.integers(-1, 2), st.integers(0, 30)),
        st.tuples(st.just("serve"), st.integers(0, 40), st.integers(-20, 40), st.integers(0, 30)),
        st.tuples(st.just("settle"), st.sampled_from("abcd"), st.integers(-60, 60), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 99), st.booleans(), st.just(0)),
    ),
    max_size=200,
)


@settings(max_examples=scaled(200), deadline=None)
@given(STEPS)
def test_the_next_is_the_one_that_a_look_at_all_would_find(steps: list[tuple[object, ...]]) -> None:
    queue: FairQueue[int] = FairQueue()
    places: dict[int, Place] = {}
    now, number = 0.0, 0
    for what, *rest in steps:
        match what, *rest:
            case "push", str(tenant), int(priority), int(wait):
                now, number = now + wait, number + 1
                places[number] = Place(tenant, priority, now, number)
                queue.push(number, places[number])
            case "settle", str(tenant), int(tokens), _:
                queue.settle(tenant, tokens)
            case "drop", int(which), bool(back), _ if places:
                gone = list(places)[which % len(places)]
                queue.remove(gone)
                if back:
                    queue.push(gone, places[gone], returning=True)
                    places[gone] = places.pop(gone)
                else:
                    del places[gone]
            case "serve", int(charge), int(more), int(wait) if places:
                now += wait
                head = queue.head(now)
                assert head is not None
                tenant = places.pop(head).tenant
                queue.remove(head)
                queue.counter.choose(tenant, charge)
                queue.settle(tenant, more)
        check(queue, places, now)


def check(queue: FairQueue[int], places: dict[int, Place], now: float) -> None:
    """The queue's answers against those of a search through all entries."""
    assert list(queue) == list(places)
    assert queue.waiting == {t: n for t in "abcd" if (n := sum(p.tenant == t for p in places.values()))}
    head = queue.head(now)
    if head is None:
        assert not places
        return
    chosen = places[head]
    oldest = {}
    for place in sorted(places.values(), key=lambda place: place.order):
        oldest.setdefault(place.priority, place)
    standing = {p: (level(p, now - place.arrived), -place.order) for p, place in oldest.items()}
    assert standing[chosen.priority] == max(standing.values())
    of_class = [place for place in places.values() if place.priority == chosen.priority]
    assert queue.counter.served(chosen.tenant) == min(queue.counter.served(place.tenant) for place in of_class)
    assert chosen.order == min(place.order for place in of_class if place.tenant == chosen.tenant)


def test_ten_seconds_of_waiting_are_worth_a_level() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("low", Place("a", 0, 0.0, 0))
    queue.push("high", Place("b", 2, 3 * AGING_SECONDS, 1))
    assert queue.head(3 * AGING_SECONDS) == "low"
    assert queue.head(2 * AGING_SECONDS - 1) == "high"


def test_counters_that_fall_often_leave_no_trail() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(3):
        queue.push(number, Place(f"t{number}", 0, 0.0, number))
    queue.counter.charge("t1", 1e9)
    for _ in range(10_000):
        queue.settle("t1", -1)
    assert len(queue._classes[0]._turns) <= 100
