"""The budget of retries."""

from __future__ import annotations

from octavo_gateway.pool.retry_budget import RetryBudget


def test_requests_earn_a_share_of_a_retry_up_to_the_reserve():
    budget = RetryBudget(share=0.5, reserve=2.0)
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend(), "half a retry"
    budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]
