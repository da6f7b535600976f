"""The figures of `make test-scale`: a wrong quantile would pass a wrong operator."""

import pytest
from tests.scale import gauge

TEXT = """\
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",method="GET"} 40.0
rest_client_requests_total{code="200",method="PATCH"} 10.0
octavo_reconcile_total{result="success"} 90.0
octavo_reconcile_total{result="error"} 10.0
octavo_ready_replicas{name="a",namespace="n"} 5.0
octavo_ready_replicas{name="b",namespace="n"} 4.0
workqueue_depth 3.0
workqueue_work_duration_seconds_bucket{le="0.1"} 50.0
workqueue_work_duration_seconds_bucket{le="1.0"} 98.0
workqueue_work_duration_seconds_bucket{le="2.5"} 100.0
workqueue_work_duration_seconds_bucket{le="+Inf"} 100.0
"""
EMPTY = "workqueue_depth 0.0\n"


def test_an_exposition_becomes_a_sample() -> None:
    sample = gauge.parse(TEXT, 1.0, 1000, 2.0)
    assert (sample.requests, sample.reads, sample.writes) == (50, 40, 10)
    assert (sample.passes, sample.depth, sample.known, sample.ready) == (100, 3, 2, 9)


def test_figures_are_those_of_the_phase_alone() -> None:
    before = gauge.parse(TEXT, 10.0, 3000, 2.0)
    after = gauge.parse(TEXT.replace('0.1"} 50.0', '0.1"} 150.0').replace(" 98.0", " 198.0"), 20.0, 1000, 5.0)
    after.work[2.5] = after.work[float("inf")] = 200.0
    found = gauge.figures([before, after])
    assert (found.seconds, found.cpu, found.rss) == (10, 3, 3000)
    assert found.p50 == pytest.approx(0.05)
    assert found.over_second == 0.0


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.1), (0.98, 1.0), (0.99, 1.75), (1.0, 2.5)])
def test_quantiles_are_interpolated_as_prometheus_does(share: float, seconds: float) -> None:
    assert gauge.quantile(gauge.parse(TEXT, 0.0, 0, 0.0).work, share) == pytest.approx(seconds)


def test_beyond_the_last_bucket_its_bound_is_said_and_nothing_is_nothing() -> None:
    assert gauge.quantile({1.0: 5.0, float("inf"): 10.0}, 0.99) == 1.0
    assert gauge.quantile(gauge.parse(EMPTY, 0.0, 0, 0.0).work, 0.99) == 0.0
