"""The baselines against numbers computed by hand from their formulas."""

import pytest
from msgspec import structs

from octavo_operator.autoscale.types import GatewaySample, Observation, PodSample
from octavo_protocol.load import LoadReport, ModelTraffic, StepSums
from octavo_simulator.controllers import apa, hpa, kpa, kubeai, oracle, wva
from octavo_simulator.controllers.view import Window, view
from octavo_simulator.scenario import Controller, Promise
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace, TraceRequest


def load(**values: object) -> LoadReport:
    plain = {field.name: 0 for field in structs.fields(LoadReport) if field.required}
    plain |= {"model": "m", "block_size": 10, "blocks_total": 100, "max_running": 50, "max_batched_tokens": 200}
    return LoadReport(**(plain | {"ready": True, "draining": False, "max_waiting": 9} | values))  # type: ignore[arg-type]


def seen(
    now: float,
    *loads: LoadReport | None,
    pending: int = 0,
    active: int = 0,
    held: int = 0,
    current: int | None = None,
    wake: bool = False,
) -> Observation:
    """Ready pods with these reports (None: none for long), pending ones, and a gateway's counts."""
    pods = [PodSample(f"p{i}", "ready", 0.0, one, now if one else -99.0) for i, one in enumerate(loads)]
    pods += [PodSample(f"s{i}", "pending", now) for i in range(pending)]
    traffic = ModelTraffic(
        namespace="n", name="m", arrivals=0, arrival_prompt_tokens=0, in_flight=active, held=held,
        held_prompt_tokens=100 * held, oldest_hold=0.0, last_arrival=0.0,
    )  # fmt: skip
    replicas = len(pods) if current is None else current
    return Observation(replicas, tuple(pods), (GatewaySample("g", traffic, now),), wake)


def test_view_leaves_out_what_is_old() -> None:
    found = view(seen(100.0, load(), None, pending=1, active=7, held=2), 100.0)
    assert (found.ready, found.missing, found.pending, found.active, found.held) == (2, 1, 1, 9, 2)


def test_windows_are_not_filled_up_with_zeros() -> None:
    window = Window(10.0)
    for now, value in ((0, 4.0), (5, 8.0)):
        window.add(now, value)
    assert (window.mean(), window.highest()) == (6.0, 8.0)
    window.add(10.0, 1.0)
    assert window.mean() == 4.5


@pytest.mark.parametrize(
    ("values", "target", "current", "ready", "pending", "expected"),
    [
        ([0.9, 0.9], 0.6, 2, 2, 0, 3),  # ratio 1.5: ceil(1.5 * 2)
        ([0.64, 0.64], 0.6, 2, 2, 0, 2),  # 1.07 is within the tolerance
        ([0.19, 0.19, 0.19], 0.6, 3, 3, 0, 1),
        ([0.9, 0.9], 0.6, 3, 2, 1, 3),  # the pending one counts as idle: 1.8 / 3 / 0.6 = 1.0
        ([1.2, 1.2], 0.6, 3, 2, 1, 4),  # 2.4 / 3 / 0.6 = 1.33: ceil(4.0)
        ([0.3], 0.6, 2, 2, 0, 2),  # the missing one counts as on target: 0.9 / 2 / 0.6 = 0.75, ceil(1.5)
        ([0.9], 0.6, 2, 2, 0, 2),  # the missing one counts as idle, the direction turns: no change
        ([], 0.6, 4, 4, 0, 4),
    ],
)
def test_hpa_on_pods(values: list[float], target: float, current: int, ready: int, pending: int, expected: int) -> None:
    assert hpa.of_pods(values, target, current=current, ready=ready, pending=pending) == expected


def test_hpa_on_a_metric_from_outside_knows_no_pods() -> None:
    assert hpa.external(21, 5, current=2) == 5
    assert hpa.external(10.5, 5, current=2) == 2
    assert hpa.external(0, 5, current=2) == 0


def answers(controller: Controller, *looks: tuple[float, Observation]) -> list[int]:
    return [controller(observation, now).replicas for now, observation in looks]


def test_hpa_syncs_every_15_seconds_and_goes_down_by_the_window() -> None:
    busy, idle = load(waiting=12), load(waiting=0)
    controller = hpa.on_pods(hpa.queue, 4, down_window=60.0)
    assert answers(
        controller,
        (0, seen(0, busy)),  # ceil(3 * 1)
        (2, seen(2, busy)),  # between two syncs
        (15, seen(15, busy, pending=2)),  # 12 / 3 pods is on target
        (30, seen(30, idle, idle, idle)),  # 0, and 3 was asked for 30 s ago
        (45, seen(45, idle, idle, idle)),
        (60, seen(60, idle, idle, idle)),  # 3 was asked for at 15 s
        (75, seen(75, idle, idle, idle)),
    ) == [3, 1, 3, 3, 3, 3, 0]


def test_hpa_adds_four_or_doubles_in_15_seconds() -> None:
    assert [hpa.limited_up(100, n) for n in (1, 4, 10)] == [5, 8, 20]
    controller = hpa.on_queue_outside(1.0)
    assert answers(controller, (0, seen(0, load(waiting=50))), (15, seen(15, load(waiting=50), pending=4))) == [5, 10]


def test_gpu_utilisation_is_the_share_of_time_in_steps() -> None:
    metric = hpa.duty_cycle(window=30.0)

    def at(now: float, busy: float) -> dict[str, float]:
        return dict(metric(view(seen(now, load(steps=StepSums(seconds=busy))), now), now))

    assert at(0, 5.0) == {}
    assert at(10, 10.0) == {"p0": 0.5}
    assert at(20, 20.0) == {"p0": 0.75}


def test_hpa_holds_when_all_metrics_are_gone() -> None:
    assert answers(hpa.on_pods(hpa.queue, 4), (0, seen(0, None, None))) == [2]


def test_kpa_divides_the_sum_and_panics_on_ready_pods() -> None:
    """60 active at a target of 10: six pods. 12 asked for one ready pod is panic; the highest answer stands."""
    controller = kpa.kpa(10.0, stable=60.0)
    assert answers(controller, (0, seen(0, load(), active=60, pending=5))) == [6]
    assert answers(controller, (2, seen(2, load(), active=120, pending=5))) == [9]  # both windows: (60 + 120) / 2 / 10
    # Panic ends a stable window after it was last over; until then nothing goes.
    ready = [load()] * 9
    assert answers(controller, (40, seen(40, *ready, active=0))) == [9]
    assert answers(controller, (63, seen(63, *ready, active=0))) == [4]  # at least floor(9 / 2)


def test_kpa_waits_before_zero_and_holds_without_gateways() -> None:
    controller = kpa.kpa(10.0, idle_to_zero=30.0, least=0)
    assert answers(controller, (0, seen(0, load(), active=1)), (29, seen(29, load()))) == [1, 1]
    silent = Observation(3, (), (GatewaySample("g", None, 0.0),))
    assert controller(silent, 30.0).reason == "MetricsMissing"
    assert answers(kpa.kpa(10.0, idle_to_zero=30.0, least=0), (40, seen(40, load(), current=1))) == [0]


def test_kpa_delay_keeps_the_highest_answer() -> None:
    controller = kpa.kpa(10.0, stable=10.0, delay=100.0)
    looks = [(0, seen(0, *[load()] * 5, active=50)), (50, seen(50, *[load()] * 5)), (101, seen(101, *[load()] * 5))]
    assert answers(controller, *looks) == [5, 5, 2]


def test_kubeai_averages_ten_minutes_and_goes_down_late() -> None:
    controller = kubeai.kubeai(10.0)
    assert answers(controller, (0, seen(0, load(), active=40)), (10, seen(10, load(), active=0))) == [4, 2]
    pods = [load()] * 6
    assert answers(controller, *((t, seen(t, *pods)) for t in (20, 30, 40, 50))) == [6, 6, 6, 1]
    assert kubeai.kubeai(10.0)(seen(0, active=0, held=1), 0.0).replicas == 1


def test_wva_capacity_is_memory_or_compute() -> None:
    """N = min(B*O/(I+O), rows) = 200*100/400 = 50 requests of I + O/2 = 350 tokens; 80 % of the pool is 800 tokens."""
    assert wva.derived(load(), 300, 100) == 50 * 350
    assert wva.derived(load(max_batched_tokens=40), 300, 100) == 10 * 350
    # 1,360 tokens in use and queued, at 0.85 of 800 each: two replicas.
    first = load(requests=10, prompt_tokens=3000, generation_tokens=1000, blocks_pinned=46, waiting=3)
    assert answers(wva.wva(), (0, seen(0, first))) == [2]


def test_wva_learns_what_was_in_use_while_the_queue_was_long() -> None:
    """With five waiting, 300 tokens in use are what a replica takes: (300 + 5*300) / 0.85 / 300 = 7.1."""
    first = load(requests=10, prompt_tokens=3000, generation_tokens=1000, blocks_pinned=30, waiting=5)
    assert answers(wva.wva(), (0, seen(0, first))) == [8]


@pytest.mark.parametrize(
    ("demand", "ready", "pending", "expected"),
    [
        (850, 1, 0, 1),  # exactly at the threshold
        (860, 1, 0, 2),
        (860, 1, 1, 2),  # the pending one is supply
        (1300, 3, 0, 2),  # spare 3000 - 1857 = 1143: one fewer, and 1300 is below 0.85 * 2000
        (2000, 3, 0, 3),  # spare 143: none
        (100, 3, 1, 4),  # nothing goes while one starts
        (0, 3, 0, 1),
    ],
)
def test_wva_replicas(demand: float, ready: int, pending: int, expected: int) -> None:
    assert wva.replicas(demand=demand, each=1000, ready=ready, pending=pending, up=0.85, down=0.70) == expected


@pytest.mark.parametrize(
    ("usage", "current", "expected"),
    [(0.55, 4, 4), (0.6, 4, 5), (1.0, 4, 8), (0.3, 4, 3), (0.01, 8, 4), (0.01, 1, 1)],
)
def test_apa_recommendation(usage: float, current: int, expected: int) -> None:
    assert apa.recommendation(usage, 0.5, current) == expected


def test_apa_goes_down_by_the_window() -> None:
    full, empty = load(blocks_pinned=100), load()
    controller = apa.apa(0.5)
    looks = [
        (0, seen(0, full)),
        (10, seen(10, empty, empty)),
        (299, seen(299, empty, empty)),
        (301, seen(301, empty, empty)),
    ]
    assert answers(controller, *looks) == [2, 2, 2, 1]


def test_oracle_counts_work_and_looks_ahead() -> None:
    """100 prompt tokens: 0.1 s. 10 steps of a row: 2 ms + 0.105 ms, and of 10 ms the share of one row.

    Rows that fit: (0.85 * 50 ms - 10 ms) / (2.105 ms + 10 ms) = 2.68.
    """
    pod = PodProfile("p", base=0.01, prefill=0.001, row=0.002, context=1e-6, pool_tokens=10_000, start=30.0, budget=200)
    promise = Promise(1.0, 0.05)
    row = 0.002 + 1e-6 * 105
    each = 0.1 + 10 * (row + 0.01 / (0.0325 / (row + 0.01)))
    assert oracle.work(TraceRequest(0, 100, 10), pod, promise) == pytest.approx(each)
    trace = Trace("t", tuple(TraceRequest(100 + i / 100, 100, 10) for i in range(1000)), 200.0)
    controller = oracle.oracle(trace, pod, promise, busy=1.0, window=10.0)
    assert controller(Observation(1), 0.0).replicas == 1
    # 100 requests a second for ten seconds, seen a minute ahead: in time for a start of half a minute.
    assert controller(Observation(1), 45.0).replicas == pytest.approx(100 * each, abs=1)
    assert controller(Observation(1), 120.0).replicas == 1
