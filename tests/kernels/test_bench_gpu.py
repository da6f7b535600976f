"""`bench.gpu`: its arithmetic, its files, and every measurement in the interpreter, where figures mean nothing."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.gpu import checked_models
from bench.gpu.check_engine import Load, compare
from bench.gpu.commands import measure
from bench.gpu.experiments import peer, start, timeline
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import LLAMA_8B, MODELS, QWEN3_30B_A3B, random_weights, tiny
from bench.gpu.profiler import Step, Times, device_spans, host_times, idle_share, many_host_times, summary
from bench.gpu.report import GOALS, markdown
from bench.gpu.roofline import (
    DATA_SHEET,
    PUBLISHED,
    data_sheet,
    decode_bytes,
    layer_parameters,
    load_ceiling,
    parameters,
    prefill_operations,
    read_share,
)
from bench.gpu.serving import nano_vllm
from bench.gpu.timing import Wall
from bench.lib.checkpoint import write
from bench.lib.processes import group
from bench.lib.results import LOST, Item, opened, read, save, work
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.weight_loading import device_bytes, upload
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import dequantize

LINES: list[str] = []


# Arithmetic


def test_the_load_is_nano_vllms() -> None:
    load = nano_vllm()
    assert (len(load.prompts), sum(map(len, load.prompts)), sum(load.outputs)) == (256, 142_827, 133_966)


@pytest.mark.parametrize(("model", "published"), [("qwen3-0.6b", 39_552), ("qwen3-14b", 8_140)])
def test_ceilings_are_the_published_ones(model: str, published: int) -> None:
    load = nano_vllm()
    ceiling = load_ceiling(MODELS[model], [len(p) for p in load.prompts], load.outputs, PUBLISHED)
    assert ceiling == pytest.approx(published, rel=2e-4)


def test_sizes_are_those_of_the_models() -> None:
    assert [round(parameters(config) / 1e9, 2) for config in MODELS.values()] == [0.6, 8.03, 14.77, 30.53, 15.71, 6.94]
    # 8.03 billion weights in bfloat16 and 128 KiB of K and V a token.
    assert decode_bytes(LLAMA_8B, 0, 2, 1024, 2.0) == 2 * 1024 * 128 * 1024
    assert prefill_operations(LLAMA_8B, 1000) == pytest.approx(2 * 6.98e9 * 1000, rel=0.05)


def test_a_step_reads_the_experts_that_its_sequences_choose() -> None:
    assert round(layer_parameters(QWEN3_30B_A3B, active=True) / 1e9, 2) == 2.73
    # One token: what it uses, of 30.53 billion weights, with embedding and head.
    unused = layer_parameters(QWEN3_30B_A3B) - layer_parameters(QWEN3_30B_A3B, active=True)
    assert read_share(QWEN3_30B_A3B, 1) == pytest.approx(1 - unused / parameters(QWEN3_30B_A3B))
    assert 0.99 < read_share(QWEN3_30B_A3B, 128) < 1
    assert read_share(LLAMA_8B, 1) == 1


def test_a_card_is_known_by_the_longest_name() -> None:
    assert data_sheet("NVIDIA H100 PCIe") is DATA_SHEET["NVIDIA H100 PCIe"]
    assert data_sheet("NVIDIA H100 80GB HBM3") is DATA_SHEET["NVIDIA H100"]
    assert data_sheet("NVIDIA L40S") is DATA_SHEET["NVIDIA L40S"]
    assert data_sheet("NVIDIA A100-SXM4-40GB") is DATA_SHEET["NVIDIA A100"]
    assert [data_sheet(card) for card in ("NVIDIA TITAN V", "NVIDIA L40", "NVIDIA A10G")] == [None] * 3


@pytest.mark.parametrize("stored", ["bf16", "int4"])
def test_random_weights_take_no_memory_and_no_two_rows_or_matrices_are_alike(stored: Any) -> None:
    big = random_weights(MODELS["qwen3-14b"], stored)
    held = {id(root): root.nbytes for root in map(_root, (big.embedding.data, *_matrices(big.layers[0])))}
    assert sum(held.values()) < 10 << 20
    weights = random_weights(tiny(LLAMA_8B), stored)
    q, k = dequantize(weights.layers[0].q), dequantize(weights.layers[0].k)
    assert 0.5 < float(q.std()) * q.shape[1] ** 0.5 < 2
    assert len({row.tobytes() for row in q}) == len(q)
    assert not (q[: len(k)] == k).all()
    sent = upload(tiny(LLAMA_8B), weights, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert sent.nbytes == device_bytes(tiny(LLAMA_8B), weights, dtype=torch.bfloat16)


def _matrices(layer: Any) -> list[Any]:
    return [layer.q.data, layer.k.data, layer.down.data]


def _root(array: Any) -> Any:
    while getattr(array.base, "nbytes", None) is not None:
        array = array.base
    return array.base.base if hasattr(array.base, "base") else array


def test_idle_is_what_no_span_covers() -> None:
    assert idle_share([(0.0, 1.0), (1.0, 3.0), (3.5, 4.0)]) == pytest.approx(0.125)
    assert idle_share([(0.0, 4.0), (1.0, 2.0)]) == 0.0


def test_waiting_is_no_work_of_the_host() -> None:
    # The second step is launched in the second turn, in which the first is waited for.
    steps = [_step((0.0, 0.1), (1.2, 1.9)), _step((1.0, 1.1), (2.1, 2.2))]
    times = Times(steps, [(0.0, 0.5), (1.0, 2.0), (2.0, 2.5)], [])
    assert host_times(times) == pytest.approx([0.5, 0.3, 0.4])
    found = summary(times, [(0.0, 1.0), (1.5, 2.0)], [(0.0, 1.0), (1.75, 2.0)], rows=4)
    assert (found["steps"], found["decodes"]) == (2, 2)
    assert found["idle"] == found["decode_idle"] == pytest.approx(0.25)
    assert found["idle_most"] == found["decode_idle_most"] == pytest.approx(0.375)
    assert found["step_ms_p50"] == 1500.0
    assert summary(times, [(0.0, 1.0), (1.5, 2.0)], [(0.0, 1.0), (1.5, 2.0)], rows=9)["decode_idle"] is None


def test_the_host_work_of_large_decodes_is_told_apart() -> None:
    steps = [Step(sequences, tokens, (at, at + 0.1), 0.0, 0.0) for sequences, tokens, at in
             ((256, 256, 0.0), (256, 300, 1.0), (8, 8, 2.0), (200, 200, 3.0))]  # fmt: skip
    times = Times(steps, [(0.0, 0.5), (1.0, 1.6), (2.0, 2.7), (3.0, 3.8), (4.0, 4.9)], [])
    assert many_host_times(times) == pytest.approx([0.5, 0.8])


def test_a_step_that_is_launched_late_leaves_the_device_idle() -> None:
    # Marks are the device's clock, which runs twice as fast as the host's and began at 7. While the first step runs
    # the second is launched; the third is launched when the second is long done.
    steps = [_step((0.0, 0.5), marks=(7.0, 11.0)), _step((0.6, 1.0), marks=(11.0, 13.0))]
    steps.append(_step((3.5, 4.0), marks=(14.0, 17.0)))
    times = Times(steps, [], [(0.0, 7.0), (5.0, 17.0)])
    most, least = device_spans(Wall(), times)
    assert most == [(0.0, 4.0), (4.0, 6.0), (7.0, 10.0)]
    assert least == [(1.0, 4.0), (4.0, 6.0), (8.0, 10.0)]


def _step(
    launch: tuple[float, float], collect: tuple[float, float] = (0.0, 0.0), marks: tuple[float, float] = (0.0, 0.0)
) -> Step:
    return Step(sequences=8, tokens=8, launch=launch, first=marks[0], last=marks[1], collect=collect)


def test_kernels_and_the_host_are_on_one_clock() -> None:
    def event(name: str, begin: float, end: float, *, device: bool = False) -> Any:
        kind = torch.autograd.DeviceType.CUDA if device else torch.autograd.DeviceType.CPU
        return SimpleNamespace(name=name, time_range=SimpleNamespace(start=begin, end=end), device_type=kind)

    found = timeline.lanes(
        [
            event("aten::mm", 0, 1),
            event("turn", 1000, 5000),
            event("launch", 1000, 2000),
            event("launch", 1500, 6000, device=True),
            event("attend", 4000, 5000, device=True),
            event("linear", 2000, 3000, device=True),
        ],
        steps=2,
    )
    assert found["turn"] == [[0.0, 4.0]]
    assert found["launch"] == [[0.0, 1.0]]
    assert found["kernels"] == [[1.0, 2.0, "linear"], [3.0, 4.0, "attend"]]
    assert found["kernel_idle"] == pytest.approx(1 / 3)
    assert found["kernels_a_step"] == 1.0


# Files


def run(path: Path, items: list[Item], seconds: float = 1e6, alive: Callable[[], object] = lambda: None) -> bool:
    """`work` with a clock that ticks a second each time it is read."""
    ticks = itertools.count()
    return work(
        path, opened(path, {"part": "test"}), items, seconds, LINES.append, alive=alive, clock=lambda: next(ticks)
    )


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path, ran = tmp_path / "a.json", []

    def items(count: int) -> list[Item]:
        return [Item(f"row {i}", lambda i=i: ran.append(i) or {"figure": i * 1.5}) for i in range(count)]

    assert not run(path, items(4), 3.5)
    assert 0 < len(ran) < 4
    assert json.loads(path.read_text())["complete"] is False
    assert run(path, items(4))
    assert ran == [0, 1, 2, 3]
    assert [row["figure"] for row in json.loads(path.read_text())["rows"]] == [0.0, 1.5, 3.0, 4.5]
    with pytest.raises(SystemExit, match="has part 'test', this is 'other': give another --out"):
        opened(path, {"part": "other"})


def test_a_run_without_time_does_one_row_so_that_runs_come_to_an_end(tmp_path: Path) -> None:
    items = [Item(f"row {i}", dict) for i in range(3)]
    assert [run(tmp_path / "a.json", items, 0.0) for _ in range(3)] == [False, False, True]


def test_a_row_that_fails_is_kept_and_the_others_go_on(tmp_path: Path) -> None:
    items = [Item("bad", lambda: 1 // 0), Item("good", dict)]  # type: ignore[arg-type,return-value]
    assert run(tmp_path / "a.json", items)
    bad, good = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert (bad["verdict"], good["verdict"]) == ("failed", "ok")
    assert "ZeroDivisionError" in bad["why"]


def test_a_damaged_result_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rows": [')
    assert read(tmp_path / "a.json") is read(tmp_path / "absent.json") is None
    with pytest.raises(SystemExit, match=r"a\.json is no result file: remove it, or give another --out"):
        opened(tmp_path / "a.json", {"part": "test"})
    save(tmp_path / "b.json", {"rows": []})
    assert read(tmp_path / "b.json") == {"rows": []}


def test_a_lost_gpu_ends_the_process_behind_the_row_that_lost_it(tmp_path: Path) -> None:
    def dead() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    items = [Item("bad", lambda: 1 // 0), Item("good", dict)]  # type: ignore[arg-type,return-value]
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "a.json", items, alive=dead)
    assert ended.value.code == LOST
    assert run(tmp_path / "a.json", items, alive=dead)
    assert [row["key"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]] == ["bad", "good"]


def test_a_job_that_is_killed_takes_what_it_started_with_it(tmp_path: Path) -> None:
    program = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    with group([sys.executable, "-c", program], tmp_path / "log", patience=30.0):
        while not (said := (tmp_path / "log").read_text().strip()):
            time.sleep(0.01)
        child = Path("/proc", said, "stat")
        assert child.exists()
    while child.exists() and child.read_text().split()[2] not in "ZX":
        time.sleep(0.01)


def test_the_engine_answers_as_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = replace(checked_models.tiny(checked_models.MODELS["Qwen3-0.6B"]), layers=1)
    row = compare(config, Load(prompts=(3,), common=0, out=3, budget=24), torch.float32, find_device())
    assert (row["verdict"], row["equal"], row["sampled_wrong"]) == ("ok", 3, 0), row


# Other engines, and folders for them


def test_a_folder_is_written_in_a_row_of_its_own_before_the_starts(tmp_path: Path) -> None:
    setting = Setting(("qwen3-0.6b",), True, Wall(), torch.device("cpu"), PUBLISHED, None, tmp_path)
    items = list(start.items(setting))
    assert [item.key.split()[-1] for item in items] == ["folder", "warm", "cold"]
    row = items[0].run()
    assert row["gb"] > 0
    assert (tmp_path / "octavo-qwen3-0.6b-tiny" / "config.json").exists()


def test_a_folder_of_random_weights_is_a_checkpoint(tmp_path: Path) -> None:
    config = tiny(MODELS["qwen3-0.6b"])
    model = load_model(str(write(tmp_path / "model", config, random_weights(config))))
    assert isinstance(model, LoadedModel)
    # Defaults, spelled out.
    usual = {"rotary_dim": config.head_dim, "query_scale": config.score_scale, "bos_token_id": 0}
    assert replace(model.config, digest="") == replace(config, **usual)
    expected = random_weights(config)
    for found, given in (
        (model.weights.embedding, expected.embedding),
        (model.weights.layers[0].k, expected.layers[0].k),
    ):
        assert (dequantize(found) == dequantize(given)).all()
    assert model.text.tokenizer.get_vocab_size() <= config.vocab


@pytest.mark.parametrize("answers", [True, False])
def test_a_peer_is_measured_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    (tmp_path / "echo.py").write_text(ECHO.format(count="outputs" if answers else "[1]"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    setting = Setting((), True, Wall(), torch.device("cpu"), PUBLISHED, None, tmp_path)
    if not answers:
        with pytest.raises(RuntimeError, match="json ended with status 1: 1 tokens came out, 6 were asked for"):
            peer.run(setting, "qwen3-0.6b", "json", "echo")
        return
    row = peer.run(setting, "qwen3-0.6b", "json", "echo")
    assert (row["version"], row["tokens"], len(row["rounds_s"])) == ("echo 1", 6, 2)
    assert row["tokens_per_s"] > 0
    absent = peer.run(setting, "qwen3-0.6b", "no_such_module")
    assert absent["why"] == "no_such_module is not installed here"


ECHO = """from bench.gpu.vllm_load import serve
serve("echo 1", lambda folder: lambda prompts, outputs: [2] if prompts == [[1, 2, 3]] else {count})
"""


# Every measurement


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("part", "model", "figure"),
    [
        pytest.param("tiles", "qwen3-0.6b", "best_us", marks=pytest.mark.full),
        ("decode", "llama-8b", "gb"),
        ("adapters", "llama-8b", "of_plain"),
        ("load", "qwen3-0.6b", "tokens_per_s"),
        ("ttft", "llama-8b", "ttft_ms"),
        ("anchors", "llama-8b", "us"),
        ("formats", "llama-8b", "us"),
        ("launches", "qwen3-0.6b", "host_ms"),
        pytest.param("timeline", "qwen3-0.6b", "step_ms_p50", marks=pytest.mark.full),
    ],
)
def test_a_part_runs(folder: Path, part: str, model: str, figure: str) -> None:
    out = folder / f"{part}.json"
    given = argparse.Namespace(
        command=part, out=out, model=[model], seconds=1e6, interpret=True, folder=folder, tensor_parallel_size=1,
        only=[], quick=False, part=None,
    )  # fmt: skip
    assert measure(given) == 0
    report = json.loads(out.read_text())
    assert report["complete"]
    assert [row.get("why") for row in report["rows"] if row["verdict"] != "ok"] == []
    assert all(row[figure] > 0 for row in report["rows"])
    text = markdown({part: report})
    assert f"## {part}" in text
    assert "this proves the program" in text
    assert "| goal |" not in text


def test_a_report_ends_with_what_failed_its_steps_and_the_goals_it_reached() -> None:
    load = {
        "key": "a",
        "verdict": "ok",
        "model": "qwen3-0.6b",
        "way": "sampled",
        "tokens_per_s": 31e3,
        "of_ceiling": 0.7,
    }
    bad = {"key": "attend decode", "verdict": "wrong", "error": 0.03}
    peaks = {"bandwidth": 4.3e12, "bf16": 8e14}
    head = {"interpreted": False, "card": "NVIDIA H200", "peaks": peaks, "data_sheet": None}
    head |= {"versions": {"torch": "t", "cuda": "c", "triton": "t"}}
    reports = {
        "check-kernels": head | {"part": "check", "rows": [bad]},
        "load-0.6b": head | {"part": "load", "rows": [load]},
    }
    steps = [
        {"name": "check-kernels", "status": "failed", "seconds": 9.0, "rows": 1, "bad": 1, "compiled": 0},
        {"name": "load-0.6b", "status": "ok", "seconds": 80.0, "rows": 1, "bad": 0, "compiled": 2},
    ]
    text = markdown(reports, steps)
    at = [text.index(words) for words in (
        "| qwen3-0.6b | sampled | 31,000 | 70.0 % |",
        "FAILED check-kernels: attend decode: wrong: error 0.03",
        "NVIDIA H200: a copy reaches 4.3 TB/s",
        "| load-0.6b | ok | 80.0 | 1 | 0 | 2 |  |",
        "| ≥ 80.0 % | **70.0 %** ✗ |",
    )]  # fmt: skip
    assert at == sorted(at)
    assert "14B" not in text


def test_a_goal_is_the_median_of_its_rows_and_empty_without_any() -> None:
    assert not any(goal.measured([]) for goal in GOALS)
    row = {"model": "llama-8b", "weights": "bf16", "kv": "auto", "batch": 1, "context": 512, "of_bandwidth": 0.9}
    [decode] = [goal for goal in GOALS if goal.part == "decode"]
    assert decode.measured([row, row | {"batch": 2, "of_bandwidth": 0.1}]) == "**90.0 %** ✓"
