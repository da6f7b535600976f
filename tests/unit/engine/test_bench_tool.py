"""`octavo-server bench`: rates are counted as documented, and formats, loads and errors are those of the flags."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, TextModel
from octavo_inference.tools.bench import command
from octavo_inference.tools.bench.loads import Answers, BenchLoad, LoadResult, Sample, answer, measure, rate

from .echo import make_runner, tiny_model

SMALL = ["--prompt", "20,24", "--decode", "4", "--mixed", "17+3", "--batch", "1,2", "--repetitions", "2"]
ENGINE = ["--kv-memory", "1Mi", "--max-model-len", "64", "--threads", "1"]


@pytest.fixture
def tiny_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command with a tiny random model: exit status, standard output and standard error."""
    config, weights = tiny_model()

    def words() -> Any:
        raise ModelError("no words are needed")

    model = LoadedModel(TextModel("tiny", Path("tiny"), config, words), config, weights)
    monkeypatch.setattr(command, "load_model", lambda path: model)
    usual = command.engine_settings  # on the reference: the model is too small for the kernels
    monkeypatch.setattr(command, "engine_settings", lambda given: replace(usual(given), backend="reference"))

    def run(*arguments: str) -> SimpleNamespace:
        status = command.main([*arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return run


def test_every_load_is_measured_as_often_as_asked(tiny_bench: Any) -> None:
    found = tiny_bench("tiny", *SMALL, *ENGINE, "--format", "json")
    assert found.status == 0, found.err
    report = json.loads(found.out)
    assert [(row["test"], row["batch"]) for row in report["results"]] == [
        (test, batch) for test in ("prompt 20", "prompt 24", "decode 4", "mixed 17+3") for batch in (1, 2)
    ]
    assert all(len(row["rates"]) == 2 and min(row["rates"]) > 0 for row in report["results"])
    assert all(row["stddev"] >= 0 and row["ttft_ms_p50"] > 0 for row in report["results"])
    assert [row["itl_ms_p50"] is None for row in report["results"]] == [True] * 4 + [False] * 4
    assert (report["model"], report["weights"], report["threads"]) == ("tiny", "f32", 1)
    assert {"device", "dtype", "instruction_set", "processor"} <= report.keys()


@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_other_formats_have_the_same_rows(tiny_bench: Any, form: str) -> None:
    found = tiny_bench("tiny", "--prompt", "20", "--decode", "0", "--repetitions", "1", *ENGINE, "--format", form)
    assert found.status == 0, found.err
    if form == "csv":
        [row] = csv.DictReader(io.StringIO(found.out))
        assert (row["test"], row["batch"], row["model"], row["stddev"]) == ("prompt 20", "1", "tiny", "0.0")
        return
    assert found.out.startswith("octavo ")
    assert "model tiny" in found.out
    [line] = [line for line in found.out.splitlines() if "prompt 20" in line]
    assert line.startswith("| prompt 20 | 1 | " if form == "markdown" else "prompt 20")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--prompt", "many"], 2, "--prompt: 'many': write numbers from 0 to 1048576, such as 1,8,64"),
        (["--batch", "1,0"], 2, "--batch: '1,0': write numbers from 1 to 1048576, such as 1,8,64"),
        (["--mixed", "512"], 2, "--mixed: '512' is not tokens in and out; write them like 512+128,1024+256"),
        (["--prompt", "0", "--decode", "0"], 2, "--prompt: 0, and --decode 0: leave one of them out, or give --mixed"),
        (["tiny", "--model", "other"], 2, "MODEL: 'tiny' and --model 'other': name the model once"),
        (["--promt", "1"], 2, "--promt: there is no such setting; did you mean --prompt?"),
        (
            ["--batch", "65"],
            1,
            "--batch: 65 sequences at once, and a step has room for 64: give --max-running-requests 65",
        ),
        (
            ["--prompt", "100"],
            1,
            "--prompt: a sequence has 101 tokens, and this model serves 64: give fewer",
        ),
    ],
)
def test_bad_input_is_refused_with_field_value_and_fix(
    tiny_bench: Any, arguments: list[str], status: int, message: str
) -> None:
    found = tiny_bench(*arguments, *ENGINE)
    assert (found.status, found.err, found.out) == (status, f"octavo-server bench: {message}\n", "")


def test_a_pool_that_does_not_hold_the_batch_is_named() -> None:
    engine = make_runner(blocks=8).engine
    with pytest.raises(Exception, match=r"--batch: 4 sequences of 12 tokens need 12 KV blocks, 8 fit: give a smaller"):
        command.require_room(engine, BenchLoad("mixed", 4, 8, 4))


def test_rates_count_what_each_kind_is_about() -> None:
    found = Answers([[1, 2, 3], [1, 2, 3]], [[1.0, 3.0, 4.0], [2.0, 3.0, 4.0]])
    assert rate(BenchLoad("prompt", 2, 50, 1), found) == 50.0
    assert rate(BenchLoad("decode", 2, 16, 2), found) == 2.0  # four tokens in the two seconds after the first ones
    assert rate(BenchLoad("mixed", 2, 50, 3), found) == 1.5
    assert (found.first, found.gaps, found.seconds) == ([1.0, 2.0], [2.0, 1.0, 1.0, 1.0], 4.0)


def test_answers_have_the_lengths_asked_for_and_a_time_for_each_token() -> None:
    runner = make_runner()
    found = answer(runner.engine, [[1, 2, 3], [4, 5]], [4, 2], clock=runner.clock)
    assert [len(tokens) for tokens in found.tokens] == [4, 2]
    assert [len(times) for times in found.times] == [4, 2]
    assert all(times == sorted(times) for times in found.times)


def test_repetitions_see_prompts_that_no_other_has_seen() -> None:
    engine = make_runner(blocks=64).engine
    result = measure(engine, BenchLoad("prompt", 2, 12, 1), 3)
    assert len(result.samples) == 3
    assert engine.scheduler.hit_tokens == 0


def test_mean_and_deviation_are_those_of_the_repetitions() -> None:
    result = LoadResult(BenchLoad("prompt", 1, 8, 1), tuple(Sample(r, 5.0, None) for r in (10.0, 12.0, 14.0)))
    assert (result.mean, result.stddev, result.ttft, result.itl) == (12.0, 2.0, 5.0, None)
