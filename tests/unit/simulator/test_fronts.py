"""Comparing scalers: fronts, cost at equal attainment, one setting for all, the verdict."""

import pytest

from octavo_simulator.families import FAMILIES
from octavo_simulator.fronts import Point, front, hours_at, one_for_all, paired
from octavo_simulator.report import BASELINES, ReportLine, for_all, lines, one_setting, singles, verdict
from octavo_simulator.sweep import Result, Task

POINTS = [
    Point(4.0, 0.90, "a"),
    Point(6.0, 0.98, "b"),
    Point(5.0, 0.88, "worse"),
    Point(9.0, 0.98, "dear"),
    Point(8.0, 1.0),
]


def test_the_front_leaves_out_what_is_beaten() -> None:
    assert [p.hours for p in front(POINTS)] == [4.0, 6.0, 8.0]
    assert front([]) == []


@pytest.mark.parametrize(
    ("attainment", "hours"), [(0.5, 4.0), (0.90, 4.0), (0.94, 5.0), (0.98, 6.0), (0.99, 7.0), (1.0, 8.0), (1.01, None)]
)
def test_hours_lie_between_neighbours(attainment: float, hours: float | None) -> None:
    assert hours_at(POINTS, attainment) == (pytest.approx(hours) if hours else None)


def test_one_setting_for_all_reaches_the_goal_most_often_and_then_costs_least() -> None:
    tuned = {
        "cheap": {"x": Point(1.0, 0.90), "y": Point(1.0, 0.999)},
        "good": {"x": Point(2.0, 0.99), "y": Point(2.0, 0.99)},
        "dear": {"x": Point(2.0, 1.0), "y": Point(3.0, 1.0)},
    }
    assert one_for_all(tuned, 0.99) == "good"
    assert one_for_all(tuned, 0.95) == "good"
    assert one_for_all(tuned, 0.90) == "cheap"


def test_paired_windows_cancel_what_is_hard_for_both() -> None:
    """Both need ten times more in every second window; one of them always a fifth less."""
    theirs = [[(100, 99, 1000.0 * (1 + 9 * (i % 2))) for i in range(20)]]
    ours = [[(100, 98, 0.8 * seconds) for _, _, seconds in theirs[0]]]
    cost, attained = paired(ours, theirs)
    assert (cost.value, cost.low, cost.high) == (pytest.approx(0.8), pytest.approx(0.8), pytest.approx(0.8))
    assert attained.value == attained.low == attained.high == pytest.approx(-0.01)


def _line(workload: str, ours: float | None, theirs: float | None, level: float = 0.99) -> ReportLine:
    return ReportLine(workload, level, {"octavo": ours, BASELINES[0]: theirs})


def test_the_bar() -> None:
    wins = [_line(name, 0.9, 1.0) for name in "abcd"]
    assert verdict([*wins, _line("e", 1.03, 1.0), _line("f", 1.0, 1.0)]).startswith("**The bar is met.**")
    assert "needs over 3% more on e" in verdict([*wins, _line("e", 1.04, 1.0)])
    assert "on 3 of 4 workloads (a, b, c; the bar: 4)" in verdict([*wins[:3], _line("d", 0.91, 1.0)])
    beyond = verdict([*wins, _line("e", None, 1.0)])
    assert beyond.startswith("**The bar is not met.**")
    assert "does not get there with any setting on e" in beyond
    assert "No baseline gets there with any setting on d" in verdict([*wins[:3], _line("d", 5.0, None)])


def test_where_nobody_reaches_the_level_the_next_one_counts() -> None:
    told = verdict(
        [_line("a", 0.8, 1.0, 0.95), _line("a", None, None), _line("b", 0.8, 1.0, 0.95), _line("b", 1.0, 1.0)]
    )
    assert "on 1 of 2 workloads (a; the bar: 4)" in told
    assert "No scaler gets there on a: judged at 95%." in told


def test_one_setting_for_all_is_told_with_what_it_keeps_and_costs() -> None:
    """Octavo's second setting keeps both workloads; of the baseline no setting does, and the cheaper one keeps one."""
    told = {
        ("octavo", 1.0): [(5.0, 0.98), (5.0, 0.995)],
        ("octavo", 2.0): [(6.0, 0.99), (6.0, 0.999)],
        (BASELINES[0], 1.0): [(8.0, 0.98), (7.0, 0.995)],
        (BASELINES[0], 2.0): [(9.0, 0.97), (9.0, 0.999)],
    }
    results = [
        Result(Task(workload, family, {"knob": knob}), {}, {"gpu_hours": hours, "attainment": attained}, [])
        for (family, knob), cells in told.items()
        for workload, (hours, attained) in zip("xy", cells, strict=True)
    ]
    for other in FAMILIES:
        if other.name not in {"octavo", BASELINES[0]}:
            results += [Result(Task(w, other.name, {}), {}, {"gpu_hours": 1.0, "attainment": 0.5}, []) for w in "xy"]
    found = singles(results, "xy", "judged")
    assert [(one.setting, one.kept, one.hours) for one in found][:2] == [("knob 2", 2, 12.0), ("knob 1", 1, 15.0)]
    assert "Octavo (knob 2) keeps 99% on 2 of 2 workloads. Of the baselines" in for_all(found)
    assert "(knob 1) does best: on 1, with 1.25 times Octavo's GPU-hours" in for_all(found)
    cells = [cell.strip() for cell in one_setting(found).splitlines()[2].split("|")]
    assert cells[1:-1] == ["Octavo", "knob 2", "2 of 2", "99.0%", "12.0", "99.0% · 6.00", "99.9% · 6.00"]


def test_lines_take_the_judged_part_of_the_first_seed_without_faults() -> None:
    def one(hours: float, attained: float, **more: object) -> Result:
        judged = {"gpu_hours": hours, "attainment": attained}
        return Result(Task("w", "octavo", {"share": hours}, **more), {}, judged, [])  # type: ignore[arg-type]

    found = lines([one(2.0, 0.95), one(3.0, 1.0), one(1.0, 1.0, seed=1), one(1.0, 1.0, fault="f")], ["w"])
    assert [(line.level, line.hours["octavo"]) for line in found] == [(0.95, 2.0), (0.99, pytest.approx(2.8))]
