"""Load tools next to our own client: the texts that all send, and when figures count as equal."""

from __future__ import annotations

from bench.tools.load import ToolLoad, texts
from bench.tools.report import ENGINE, OWN, table
from octavo_inference.tokenizer.assets import load_assets

LOAD = ToolLoad(requests=8, concurrency=4, prompt_tokens=32, output_tokens=16)


def test_all_texts_have_the_tokens_that_were_asked_for():
    tokenizer = load_assets("smollm2").tokenizer
    found = texts(tokenizer, 5, 40)
    assert [len(tokenizer.encode(text).ids) for text in found] == [40] * 5
    assert found == texts(tokenizer, 5, 40)
    assert len(set(found)) == 5


def test_a_load_is_judged_by_what_depends_on_the_server_alone():
    assert ToolLoad(8, 1, 32, 16).judged == ("rate", "ttft", "itl")
    assert ToolLoad(8, 4, 32, 16).judged == ("rate", "itl")
    assert ToolLoad(8, 0, 32, 16, rate=0.5).judged == ("ttft", "itl")


def row(way: str, **figures: float | None) -> dict:
    times = {"ttft": 100.0, "ttft_p50": 90.0, "itl": 10.0, "client_cpu_s": 1.0}
    return {"load": LOAD.name, "round": 0, "way": way, "rate": 50.0} | times | figures


def judged(*rows: dict) -> dict[str, str]:
    """The verdict on each way."""
    head = {"host": {"processor": "p", "cores": 2}, "load_average": [0.0], "date": "d", "flags": [], "left_out": {}}
    text = table(head | {"quick": False, "rows": rows, "loads": [{"name": LOAD.name, "judged": LOAD.judged}]})
    lines = [line.split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    return {line[1].strip(): line[-3].strip() for line in lines}


def test_figures_within_three_per_cent_agree():
    near, far = row("near", rate=51.4, itl=9.8, ttft=200.0), row("far", rate=48.4, itl=10.4)
    assert judged(row(OWN), near, row(OWN), far, row(OWN)) == {OWN: "", "near": "✓", "far": "✗ rate, itl"}


def test_the_speed_of_the_machine_may_drift():
    between = row("between", rate=55.0)
    assert judged(row(OWN, rate=50.0), between, row(OWN, rate=60.0)) == {OWN: "", "between": "✓"}


def test_a_figure_that_is_missing_is_not_judged():
    assert judged(row(OWN), row(ENGINE, ttft=None), row(OWN)) == {OWN: "", ENGINE: "✓"}


def test_an_error_stands_in_the_table():
    failed = {"load": LOAD.name, "round": 0, "way": "failed", "error": "RuntimeError: it ended with status 1"}
    text = judged(row(OWN), failed, row(OWN))
    assert set(text) == {OWN, "failed"}
