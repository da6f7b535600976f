"""`make simulate` in small: every scaler, tables, JSON, pictures; interrupted and gone on with."""

import json
import os
from pathlib import Path

import pytest

from octavo_simulator import compare
from octavo_simulator.sweep import Kept, Task, result
from octavo_simulator.workloads import JUDGED, RECORDED, WORKLOADS, NoTracesError

TRACES = Path(os.environ.get("OCTAVO_TRACES", Path(__file__).resolve().parents[3].parent / "shared" / "traces"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "QUICK_SECONDS", 90.0)


def test_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = tmp_path / "simulation.md"
    docs.write_text(f"# Before\n{compare.BEGIN}\nof last year\n{compare.END}\nafter\n")
    arguments = ["--quick", "--only", "clients", "--seeds", "2", "--workers", "1", "--traces", str(tmp_path / "none")]
    for name in ("out", "plots", "cache"):
        arguments += [f"--{name}", str(tmp_path / name)]
    assert compare.main([*arguments, "--docs", str(docs)]) == 0
    said = capsys.readouterr().out
    assert "runs to do, 0 cached" in said
    assert "**The bar is" in said
    assert "**With one setting for all, each scaler's best:** Octavo (" in said
    data = json.loads((tmp_path / "out" / "simulate.json").read_text())
    assert {one["family"] for one in data["results"]} == {family.name for family in compare.FAMILIES}
    assert all(0 <= one["judged"]["attainment"] <= 1 and one["judged"]["gpu_hours"] > 0 for one in data["results"])
    page = docs.read_text()
    assert "10 % of samples lost: octavo" in page
    assert page.startswith("# Before\n")
    assert page.endswith(f"{compare.END}\nafter\n")
    assert "of last year" not in page
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"front-clients.svg", "run.svg"}
    assert all(path.stat().st_size < 200_000 for path in (tmp_path / "plots").iterdir())
    # The second time everything is there already.
    assert compare.main([*arguments, "--docs", str(docs)]) == 0
    assert "runs to do" not in capsys.readouterr().out
    assert docs.read_text() == page


def test_a_line_cut_off_by_an_interruption_is_run_again(tmp_path: Path) -> None:
    kept = Kept.of(tmp_path)
    task = Task("clients", "static", {"replicas": 3}, seconds=60.0)
    one = result(task, None)
    kept.add(one)
    kept.path.write_text(kept.path.read_text() + '{"task": {"workload": "cl')
    assert list(Kept.of(tmp_path).results) == [task.key]
    assert Kept.of(tmp_path).results[task.key].judged == one.judged


def test_workloads_that_need_no_files_are_the_same_for_equal_seeds() -> None:
    for name in WORKLOADS.keys() - RECORDED:
        one, two, other = (WORKLOADS[name](seed, None).trace.requests for seed in (1, 1, 2))
        assert one == two != other
        assert all(r.at >= 0 and r.prompt >= 1 and r.output >= 1 for r in one)


def test_public_traces() -> None:
    """The hour that is published, each request once per copy."""
    if not TRACES.is_dir():
        pytest.skip(f"no public traces in {TRACES}: set OCTAVO_TRACES to their folder")
    assert len(WORKLOADS["azure-conv"](0, TRACES).trace.requests) == 19_366
    assert len(WORKLOADS["azure-code"](0, TRACES).trace.requests) == 2 * 8_819
    assert JUDGED["switch"](0, TRACES).trace.seconds > 3400
    assert all(JUDGED[name](0, TRACES).trace == JUDGED[name](1, TRACES).trace for name in RECORDED)


def test_missing_traces_are_said() -> None:
    with pytest.raises(NoTracesError, match="set --traces or OCTAVO_TRACES to their folder"):
        JUDGED["azure-code"](0, None)
