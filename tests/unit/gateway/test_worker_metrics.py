"""Several workers speak as one gateway."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.support.tiers import scaled

from octavo_gateway.app.worker_metrics import WorkerTotals
from octavo_protocol.load import CanaryTraffic, GatewayReport, ModelTraffic, TrackTraffic


def traffic(name="m", **fields):
    neutral = {"arrivals": 0, "arrival_prompt_tokens": 0, "in_flight": 0, "held": 0, "held_prompt_tokens": 0}
    return ModelTraffic(namespace="ns", name=name, **neutral | {"oldest_hold": 0.0, "last_arrival": 0.0} | fields)


def report(*models):
    return GatewayReport(sequence=1, start_time=5.0, models=list(models))


def exposition(requests: float, in_flight: float, oldest: float = 0.0, valid: float = 1.0) -> str:
    return f"""\
# HELP octavo_gateway_requests_total Requests
# TYPE octavo_gateway_requests_total counter
octavo_gateway_requests_total{{code="200",model="m"}} {requests}
# TYPE octavo_gateway_requests_created gauge
octavo_gateway_requests_created{{code="200",model="m"}} 1.7e9
# HELP octavo_gateway_overhead_seconds Time
# TYPE octavo_gateway_overhead_seconds histogram
octavo_gateway_overhead_seconds_bucket{{le="0.1"}} {requests}
octavo_gateway_overhead_seconds_bucket{{le="+Inf"}} {requests}
octavo_gateway_overhead_seconds_count {requests}
octavo_gateway_overhead_seconds_sum {requests / 10}
# HELP octavo_gateway_in_flight_requests Now
# TYPE octavo_gateway_in_flight_requests gauge
octavo_gateway_in_flight_requests{{model="m"}} {in_flight}
# HELP octavo_gateway_oldest_hold_seconds Longest
# TYPE octavo_gateway_oldest_hold_seconds gauge
octavo_gateway_oldest_hold_seconds{{model="m"}} {oldest}
# HELP octavo_gateway_upstream_endpoints Known
# TYPE octavo_gateway_upstream_endpoints gauge
octavo_gateway_upstream_endpoints{{model="m",state="accepting"}} 3
# HELP octavo_gateway_key_file_valid Valid
# TYPE octavo_gateway_key_file_valid gauge
octavo_gateway_key_file_valid {valid}
"""


def samples(totals: WorkerTotals) -> dict[str, float]:
    families = text_string_to_metric_families(totals.exposition().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_traffic_adds_up():
    totals = WorkerTotals(start_time=9.0)
    one = traffic(arrivals=3, in_flight=2, held=1, oldest_hold=4.0, last_arrival=7.0, pods={"a": 10, "b": 1})
    two = traffic(arrivals=5, in_flight=1, arrival_prompt_tokens=8, last_arrival=9.0, pods={"b": 2})
    totals.update(0, report(one), "")
    totals.update(1, report(two), "")
    found = totals.report()
    assert (found.start_time, found.sequence) == (9.0, 1)
    assert found.models == [
        traffic(
            arrivals=8, in_flight=3, held=1, arrival_prompt_tokens=8, oldest_hold=4.0, last_arrival=9.0,
            pods={"a": 10, "b": 3},
        )
    ]  # fmt: skip
    assert totals.report().sequence == 2


def test_a_worker_that_ends_leaves_its_counters_and_nothing_else():
    totals = WorkerTotals(start_time=9.0)
    totals.update(0, report(traffic(arrivals=3)), exposition(3, 0))
    totals.update(
        1, report(traffic(arrivals=5, in_flight=4, held=2, oldest_hold=8.0, pods={"a": 9})), exposition(5, 4, 8)
    )
    totals.ended(1)
    assert totals.report().models == [traffic(arrivals=8)]
    assert samples(totals)["octavo_gateway_requests_total"] == 8
    assert samples(totals)["octavo_gateway_in_flight_requests"] == 0
    totals.update(1, report(traffic(arrivals=1)), exposition(1, 1))
    assert totals.report().models == [traffic(arrivals=9)]
    assert samples(totals)["octavo_gateway_requests_total"] == 9


def test_only_what_all_workers_know_is_listed():
    """The operator lets a model go to zero only when gateways that list it would hold for it."""
    totals = WorkerTotals(start_time=9.0)
    totals.update(0, report(traffic(), traffic("other")), "")
    totals.update(1, report(traffic()), "")
    totals.update(2, report(), "")
    assert [model.name for model in totals.report().models] == ["m"]
    assert WorkerTotals(start_time=9.0).report().models == []


def test_evidence_of_a_canary_is_of_one_step():
    def canary(step, requests, ttft):
        track = TrackTraffic(requests=requests, errors=1, ttft=ttft)
        return CanaryTraffic(step=step, stable=track, canary=TrackTraffic())

    totals = WorkerTotals(start_time=9.0)
    for worker, step in enumerate([canary("b", 2, [1, 1]), canary("b", 3, []), canary("a", 50, [9, 9]), None]):
        totals.update(worker, report(traffic(canary=step)), "")
    found = totals.report().models[0].canary
    assert found.step == "b"
    assert found.stable == TrackTraffic(requests=5, errors=2, ttft=[1, 1])


def test_metrics_add_up_where_they_count():
    totals = WorkerTotals(start_time=9.0)
    totals.update(0, report(), exposition(2, 1, oldest=3.0, valid=0))
    totals.update(1, report(), exposition(40, 5, oldest=1.0))
    found = samples(totals)
    assert found["octavo_gateway_requests_total"] == 42
    assert found["octavo_gateway_overhead_seconds_count"] == 42
    assert found["octavo_gateway_overhead_seconds_bucket"] == 42
    assert found["octavo_gateway_in_flight_requests"] == 6
    assert found["octavo_gateway_oldest_hold_seconds"] == 3.0
    assert found["octavo_gateway_upstream_endpoints"] == 3
    assert found["octavo_gateway_key_file_valid"] == 0
    assert "octavo_gateway_requests_created" not in found


def test_of_what_every_worker_says_of_the_same_things_the_worst_counts():
    """Workers that hear fewer gateways, or have more replicas to avoid, are not hidden by the others."""
    totals, workers = WorkerTotals(start_time=9.0), [(3, 0, 8, 0, 1), (2, 1, 6, 2, 4), (3, 0, 7, 1, 1)]
    for worker, (heard, silent, accepting, rest, stride) in enumerate(workers):
        said = f"""\
# TYPE octavo_gateway_gateways gauge
octavo_gateway_gateways{{state="heard"}} {heard}
octavo_gateway_gateways{{state="silent"}} {silent}
# TYPE octavo_gateway_upstream_endpoints gauge
octavo_gateway_upstream_endpoints{{model="m",state="accepting"}} {accepting}
octavo_gateway_upstream_endpoints{{model="m",state="not-accepting"}} {rest}
# TYPE octavo_gateway_prefix_hash_stride gauge
octavo_gateway_prefix_hash_stride {stride}
"""
        totals.update(worker, report(), said)
    families = text_string_to_metric_families(totals.exposition().decode())
    found = {sample.labels.get("state", ""): sample.value for family in families for sample in family.samples}
    assert found == {"heard": 2, "silent": 1, "accepting": 6, "not-accepting": 2, "": 4}


@settings(max_examples=scaled(60))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=30))
def test_counters_never_fall(events):
    """Whichever workers count, are heard and end, in whatever order: no reader sees a counter go back."""
    totals, counted, before, all_of_it = WorkerTotals(start_time=9.0), [0, 0, 0], 0, 0
    for worker, more, ends in events:
        counted[worker] += more
        all_of_it += more
        totals.update(worker, report(traffic(arrivals=counted[worker])), exposition(counted[worker], 0))
        if ends:
            totals.ended(worker)
            counted[worker] = 0
        models = totals.report().models
        if models:
            assert models[0].arrivals == all_of_it >= before
            assert samples(totals)["octavo_gateway_requests_total"] == all_of_it
            before = all_of_it
