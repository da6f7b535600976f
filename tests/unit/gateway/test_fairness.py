"""The counters behind turns between tenants."""

from __future__ import annotations

from octavo_gateway.queueing.virtual_token_counter import _MANY, VirtualTokenCounter, cost


def test_generated_tokens_count_twice():
    assert cost(100, 30) == 160


def test_who_arrives_starts_at_the_least_of_those_who_wait():
    ledger = VirtualTokenCounter()
    ledger.choose("a", 100)
    ledger.choose("b", 300)
    ledger.arrive("c", ["a", "b"])
    assert ledger.served("c") == 100


def test_who_arrives_alone_starts_where_the_last_one_was_chosen():
    ledger = VirtualTokenCounter()
    for _ in range(5):
        ledger.choose("a", 100)
    ledger.arrive("b", [])
    assert ledger.served("b") == 400


def test_who_had_more_keeps_it():
    ledger = VirtualTokenCounter()
    ledger.choose("a", 1000)
    ledger.arrive("a", ["b"])
    assert ledger.served("a") == 1000


def test_what_was_charged_too_much_is_given_back():
    ledger = VirtualTokenCounter()
    ledger.choose("a", 500)
    ledger.settle("a", -400)
    assert ledger.served("a") == 100


def test_the_number_of_counters_is_bounded():
    ledger = VirtualTokenCounter()
    for index in range(3 * _MANY):
        ledger.arrive(f"t{index}", [])
        ledger.choose(f"t{index}", 1)
    assert len(ledger) <= _MANY + 1
