"""What `octavo-server quantize` refuses: in one sentence, before it writes anything."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.tools.quantize import command
from octavo_inference.tools.quantize import run as quantize_run
from octavo_inference.tools.quantize.gptq import gptq
from octavo_inference.tools.quantize.grid import Grid

from ..model.conftest import matrices, safetensors_bytes, write_gguf  # noqa: TID252 -- tests are no package
from .conftest import DIM, tensors, write_source

Quantize = Callable[..., SimpleNamespace]


def refused(result: SimpleNamespace, status: int, message: str) -> bool:
    return (result.status, result.err, result.out) == (status, f"octavo-server quantize: {message}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "int3"], "--format: invalid choice: 'int3' (choose from int4, int8, fp8)"),
        (["--method", "best"], "--method: invalid choice: 'best' (choose from rtn, gptq, awq)"),
        (["--groupsize", "32"], "--groupsize: there is no such setting; did you mean --group-size?"),
        (["--keep-bits", "many"], "--keep-bits: 'many' is not a number above 0 and up to 8, such as 0.25"),
        (["--keep-bits", "0"], "--keep-bits: '0' is not a number above 0 and up to 8, such as 0.25"),
        (
            ["--format", "fp8", "--method", "gptq"],
            "--method: gptq is for integers, and --format is fp8: leave --method out",
        ),
        (
            ["--format", "int8", "--zero-points"],
            "--zero-points: for --format int4, and the format is int8: leave --zero-points out",
        ),
        (
            ["--format", "fp8", "--group-size", "32"],
            "--group-size: 32, and fp8 has one scale for each row: leave --group-size out",
        ),
        (
            ["--group-size", "channel"],
            "--group-size: channel is too coarse for 4 bits: choose 128, 64 or 32",
        ),
        (
            ["--keep", "*.head"],
            "--keep: '*.head' matches no module, such as model.layers.0.mlp.down_proj: check the pattern",
        ),
        (["--keep", "model.*"], "--keep: 'model.*' matches all modules: nothing is left to quantize"),
    ],
)
def test_settings(arguments: list[str], message: str, quantize: Quantize, tmp_path: Path) -> None:
    result = quantize(tmp_path / "out", *arguments)
    # Python 3.11 quotes the choices that it lists.
    choices = result.err.partition("(choose from ")[2]
    result.err = result.err.replace(choices, choices.replace("'", "")) if choices else result.err
    assert refused(result, 2, message)
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_too_short_or_no_text(source: Path, tmp_path: Path, capsys: Any) -> None:
    short, binary = tmp_path / "short.txt", tmp_path / "binary"
    short.write_text("abc")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (short, f"--calibration: {short} has 3 tokens of this model, at least 240 are needed: give a longer text"),
        (binary, f"--calibration: {binary}: cannot be read as UTF-8 text: "),
        (tmp_path / "none", f"--calibration: {tmp_path / 'none'}: cannot be read as UTF-8 text: "),
    ):
        assert command.main([str(source), str(tmp_path / "out"), "--calibration", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"octavo-server quantize: {message}")


def test_targets_that_hold_something_else(quantize: Quantize, tmp_path: Path) -> None:
    file, full = tmp_path / "file", tmp_path / "full"
    file.write_text("mine")
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    assert refused(quantize(file), 2, f"{file}: is a file: name a folder, or a file that ends in .gguf")
    assert refused(quantize(full), 2, f"{full}: is not empty: name another folder")
    assert [path.name for path in full.iterdir()] == ["notes.txt"]
    done = tmp_path / "done"
    assert quantize(done, "--method", "rtn").status == 0
    assert refused(
        quantize(done, "--method", "rtn"), 2, f"{done}: holds a finished model: name another folder, or remove it"
    )


def interrupt(monkeypatch: pytest.MonkeyPatch, quantize: Quantize, target: Path, *arguments: str) -> None:
    with monkeypatch.context() as patched:

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(quantize_run, "_measure", stop)
        assert quantize(target, *arguments).status == 130


def test_an_unfinished_target_with_other_settings(
    quantize: Quantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    interrupt(monkeypatch, quantize, target, "--method", "rtn")
    assert refused(
        quantize(target, "--method", "rtn", "--group-size", "32"),
        2,
        f"{target}: holds an unfinished quantization with group 64, now 32: give the settings it was started with, or "
        "remove the folder",
    )
    (target / "unfinished/state.json").write_text("{")
    assert quantize(target, "--method", "rtn").err.startswith(
        f"octavo-server quantize: {target}/unfinished/state.json: not the state of an unfinished quantization: "
    )


def test_an_unfinished_target_of_another_source(
    quantize: Quantize, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = tmp_path / "out", tmp_path / "other"
    interrupt(monkeypatch, quantize, target, "--method", "rtn")
    shutil.copytree(source, other)
    (other / "model.safetensors").write_bytes(safetensors_bytes(tensors(seed=1), "BF16"))
    result = quantize(target, "--method", "rtn", source=other)
    assert result.status == 2
    assert f"{target}: holds an unfinished quantization with source " in result.err


def test_two_at_once(quantize: Quantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    original, seen = quantize_run.quantize_layer, []

    def layer(*arguments: Any, **named: Any) -> Any:
        if not seen:
            seen.append(None)
            seen[0] = quantize(target, "--method", "rtn")
        return original(*arguments, **named)

    monkeypatch.setattr(quantize_run, "quantize_layer", layer)
    assert quantize(target, "--method", "rtn").status == 0
    [second] = seen
    assert refused(second, 2, f"{target}: another process writes it: wait for it, or name another folder")


def test_a_disk_without_room(quantize: Quantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    usage = SimpleNamespace(total=10**9, used=10**9, free=1000)
    with monkeypatch.context() as patched:
        patched.setattr(quantize_run.shutil, "disk_usage", lambda _: usage)
        result = quantize(target)
    assert result.status == 2
    assert result.err.startswith(f"octavo-server quantize: {target}: needs 0.0 GB, 0.0 GB are free: make room")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(quantize_run, "write_shard", full)
        result = quantize(target)
    assert refused(
        result,
        1,
        f"{target}: cannot be written: No space left on device; make room and run the same command again",
    )
    assert quantize(target).status == 0


def test_a_source_that_is_quantized_already(quantize: Quantize, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", matrices(np.random.default_rng(0)), gguf.GGMLQuantizationType.Q8_0)
    assert refused(
        quantize(tmp_path / "out", source=path),
        1,
        f"{path}: is quantized already (q8_0), and rounding twice adds both errors: take the original weights",
    )


def test_a_model_of_the_transformers_backend(quantize: Quantize, tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source", architectures=["OwnForCausalLM"], model_type="own")
    result = quantize(tmp_path / "out", source=folder)
    assert result.status == 1
    assert "'OwnForCausalLM' is not supported" in result.err
    assert result.err.endswith("; only models of the native decoder are quantized\n")


def test_a_family_that_is_not_written(quantize: Quantize, tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source", architectures=["CohereForCausalLM"], logit_scale=1.0)
    result = quantize(tmp_path / "out", source=folder)
    assert result.status == 1
    assert "architecture 'cohere' cannot be quantized here; llama, mistral, " in result.err


def test_a_model_without_an_output_layer(quantize: Quantize, tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source", architectures=["LlamaModel"])
    assert refused(
        quantize(tmp_path / "out", source=folder),
        1,
        f"{folder}: has no output layer, and the loss is measured with it",
    )


def test_a_source_with_images(quantize: Quantize, tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "text_config": {**config, "head_dim": DIM}}))
    assert refused(
        quantize(tmp_path / "out", source=folder),
        1,
        f"{folder}/config.json: has a text_config: models with images are not quantized, only language models",
    )


def test_weights_that_are_not_finite(quantize: Quantize, tmp_path: Path) -> None:
    folder, damaged = write_source(tmp_path / "source"), tensors()
    damaged["model.layers.1.mlp.up_proj.weight"][3, 4] = np.inf
    (folder / "model.safetensors").write_bytes(safetensors_bytes(damaged, "BF16"))
    assert refused(
        quantize(tmp_path / "out", source=folder),
        1,
        f"{folder}: up of layer 1 has a value that is not finite: the file is damaged",
    )


def test_a_missing_source(quantize: Quantize, tmp_path: Path) -> None:
    result = quantize(tmp_path / "out", source=tmp_path / "none")
    assert result.status == 1
    assert "no such file or folder" in result.err


def test_inputs_that_overflow() -> None:
    with pytest.raises(ModelError, match="cannot be inverted: give a longer --calibration text"):
        gptq(np.ones((2, 32), np.float32), np.full((32, 32), np.nan, np.float32), Grid(4, 32))
