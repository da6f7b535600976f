"""The benchmarks' arithmetic: which figure is read off which rounds."""

from __future__ import annotations

import pytest

from bench.cpu.experiments import Experiment, Line
from bench.cpu.report import floor_ms, results, table

RATIO = Line("speed", "ours", ("slow", "fast"), must=1.8)
MIX = Experiment("mix", "load mix", ("ours", "slow", "fast"), (RATIO,), 1)


def record(system: str, seconds: float, number: int = 1, **more: object) -> dict[str, object]:
    return {"experiment": "mix", "round": number, "system": system, "tokens": 100, "seconds": seconds, **more}


def test_ratio_is_to_the_best_peer_of_the_same_round_and_the_median_of_rounds_counts() -> None:
    records = []
    for number, ours in ((1, 10.0), (2, 5.0), (3, 20.0)):
        records += [record("ours", ours, number), record("slow", 50.0, number), record("fast", 20.0, number)]
    [result] = results([MIX], records, "seconds")
    assert result.figures == [2.0, 4.0, 1.0]
    assert (result.median, result.met) == (2.0, True)
    assert "| **2 ×** ✓ | 2, 4, 1 |" in table([result])


def test_missing_peer_is_said_and_not_made_up() -> None:
    records = [record("ours", 10.0), {"experiment": "mix", "round": 1, "system": "fast", "error": "fast ended"}]
    [result] = results([MIX], records, "seconds")
    assert (result.figures, result.met) == ([], None)
    assert "not measured: fast ended" in table([result])


@pytest.mark.parametrize(("milliseconds", "met"), [(8.0, True), (30.0, False)])
def test_times_are_better_when_smaller(milliseconds: float, met: bool) -> None:
    line = Line("first token", "ours", ("fast",), value="ttft", must=5, inverse=True)
    experiment = Experiment("mix", "", ("ours", "fast"), (line,), 1)
    [result] = results([experiment], [record("ours", 1, ttft=milliseconds), record("fast", 1, ttft=50.0)], "seconds")
    assert result.met is met


def test_floor_of_a_step_is_its_weights_way_from_memory_or_its_arithmetic() -> None:
    model = {
        "linear_parameters": 10**8,
        "head_parameters": 10**7,
        "weight_bytes": 2 * 10**8,
        "kv_bytes_per_token": 1000,
        "context": 100,
    }
    assert floor_ms("decode 1", model, read=20.0, compute=200.0) == pytest.approx(10.005, abs=1e-3)
    assert floor_ms("prefill 512", model, read=20.0, compute=200.0) == pytest.approx(512.3, abs=1e-3)
