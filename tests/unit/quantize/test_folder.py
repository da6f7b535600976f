"""Folders that `octavo-server quantize` writes, read back by the rules of compressed-tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import dequantize
from octavo_inference.tools.quantize import run as quantize_run
from octavo_inference.tools.quantize.e4m3 import from_e4m3
from octavo_inference.tools.quantize.half import Stored
from octavo_inference.tools.quantize.stored import pack, write_shard
from octavo_inference.tools.quantize.text import windows_of

from .conftest import FFN, HIDDEN, LAYERS, SHAPES, tensors, write_source

Quantize = Callable[..., SimpleNamespace]
DTYPES = {
    "I32": np.int32,
    "I64": np.int64,
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "F8_E4M3": np.uint8,
}


def read(folder: Path) -> dict[str, np.ndarray]:
    """The tensors that the index lists, BF16 as float32."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for name, file in index["weight_map"].items():
        data = (folder / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8 : 8 + length])[name]
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        found[name] = (values.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else values
    return found


def unpack(words: np.ndarray, bits: int, columns: int) -> np.ndarray:
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = words.astype(np.int64)[..., None] >> shifts & ((1 << bits) - 1)
    return codes.reshape(len(words), -1)[:, :columns]


def decompress(found: dict[str, np.ndarray], module: str, weights: dict[str, Any]) -> np.ndarray:
    """A module's weights as `config_groups` describes them."""
    scales = found[f"{module}.weight_scale"]
    if weights["type"] == "float":
        return from_e4m3(found[f"{module}.weight"]) * scales
    rows, columns = found[f"{module}.weight_shape"]
    codes = unpack(found[f"{module}.weight_packed"], weights["num_bits"], columns)
    if weights["symmetric"]:
        zeros = np.full(scales.shape, 1 << (weights["num_bits"] - 1))
    else:
        zeros = unpack(found[f"{module}.weight_zero_point"].T, weights["num_bits"], rows).T
    spread = columns // scales.shape[1]
    return (codes - np.repeat(zeros, spread, axis=1)) * np.repeat(scales, spread, axis=1)


FORMS: dict[str, tuple[list[str], float]] = {
    "int4": (["--method", "rtn"], 0.2),
    "int4 in groups of 32": (["--method", "rtn", "--group-size", "32"], 0.15),
    "int4 with zero points": (["--method", "rtn", "--zero-points"], 0.2),
    "int4 by GPTQ": (["--group-size", "32"], 0.25),
    "int8": (["--format", "int8"], 0.02),
    "int8 in groups": (["--format", "int8", "--group-size", "64"], 0.02),
    "fp8": (["--format", "fp8"], 0.05),
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_near_those_of_the_source(form: str, quantize: Quantize, tmp_path: Path) -> None:
    arguments, bound = FORMS[form]
    result = quantize(tmp_path / "out", *arguments)
    assert result.status == 0, result.err
    config = json.loads((tmp_path / "out/config.json").read_text())
    described = config["quantization_config"]
    assert described["quant_method"] == "compressed-tensors"
    assert described["format"] == ("float-quantized" if form == "fp8" else "pack-quantized")
    assert (described["ignore"], described["config_groups"]["group_0"]["targets"]) == (["lm_head"], ["Linear"])
    exact, found = tensors(), read(tmp_path / "out")
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            module = f"model.layers.{layer}.{name}"
            values = decompress(found, module, described["config_groups"]["group_0"]["weights"])
            assert values.shape == shape
            error = np.linalg.norm(values - exact[f"{module}.weight"]) / np.linalg.norm(exact[f"{module}.weight"])
            assert 0 < error < bound, module
    for name in ("model.embed_tokens", "model.norm", "model.layers.0.input_layernorm"):
        np.testing.assert_array_equal(found[f"{name}.weight"], exact[f"{name}.weight"])
    parts = {"weight", "weight_scale"} if form == "fp8" else {"weight_packed", "weight_scale", "weight_shape"}
    parts |= {"weight_zero_point"} if form == "int4 with zero points" else set()
    assert {key.rsplit(".", 1)[1] for key in found if "layers.1.mlp.down_proj" in key} == parts


def test_awq_divides_norms_by_the_scales_of_the_columns(quantize: Quantize, tmp_path: Path) -> None:
    assert quantize(tmp_path / "out", "--method", "awq").status == 0
    found, exact = read(tmp_path / "out"), tensors()
    weights = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    name = "model.layers.0"
    scale = exact[f"{name}.input_layernorm.weight"] / found[f"{name}.input_layernorm.weight"]
    assert scale.std() > 0
    values = decompress(found, f"{name}.self_attn.q_proj", weights["weights"]) / scale
    wanted = exact[f"{name}.self_attn.q_proj.weight"]
    assert np.linalg.norm(values - wanted) < 0.2 * np.linalg.norm(wanted)


def test_the_report_says_what_it_cost(quantize: Quantize, tmp_path: Path) -> None:
    reports = {}
    for form in ("int4", "int8"):
        result = quantize(tmp_path / form, *FORMS[form][0])
        reports[form] = json.loads((tmp_path / form / "octavo_quantize.json").read_text())
        assert f"mean KL divergence, nats         {reports[form]['mean_kl']:.5f}" in result.out
    four, eight = reports["int4"], reports["int8"]
    assert (four["matrix_bits"], four["group_size"], eight["group_size"]) == (4.25, 64, None)
    assert 0 < eight["mean_kl"] < four["mean_kl"] / 20
    assert eight["top1_agreement"] > four["top1_agreement"]
    assert four["tokens"] == 2 * 47
    assert four["perplexity_before"] == eight["perplexity_before"] > 1
    size = sum(path.stat().st_size for path in (tmp_path / "int4").glob("*.safetensors"))
    elements = sum(values.size for values in tensors().values())
    assert (four["bytes"], four["model_bits"]) == (size, pytest.approx(size * 8 / elements, abs=1e-3))


def test_what_belongs_to_the_model_comes_along(quantize: Quantize, source: Path, tmp_path: Path) -> None:
    assert quantize(tmp_path / "out", "--format", "int8").status == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        *(f"model-0000{number}-of-00004.safetensors" for number in range(1, LAYERS + 2)),
        "model.safetensors.index.json",
        "octavo_quantize.json",
        "tokenizer.json",
    ]
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out"))
    described = {"quantization_config": after["quantization_config"], "tie_word_embeddings": True}
    assert after == before | described


def test_matrices_that_a_pattern_names_stay_in_16_bits(quantize: Quantize, tmp_path: Path) -> None:
    result = quantize(tmp_path / "out", "--method", "rtn", "--keep", "*.layers.1.*q_proj")
    kept = [f"model.layers.1.self_attn.{name}_proj" for name in "qkv"]
    found, exact = read(tmp_path / "out"), tensors()
    for module in kept:
        np.testing.assert_array_equal(found[f"{module}.weight"], exact[f"{module}.weight"])
        assert f"{module}: 16 bits" in result.out
    described = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert described["ignore"] == ["lm_head", *kept]
    assert list(described["config_groups"]) == ["group_0"]


def test_auto_spends_its_bits_where_they_matter_most(quantize: Quantize, tmp_path: Path) -> None:
    plain = quantize(tmp_path / "plain", "--method", "rtn")
    assert plain.status == 0
    result = quantize(tmp_path / "out", "--method", "rtn", "--keep", "auto", "--keep-bits", "1")
    assert result.status == 0, result.err
    reports = [json.loads((tmp_path / name / "octavo_quantize.json").read_text()) for name in ("plain", "out")]
    assert 4.25 + 0.5 < reports[1]["matrix_bits"] <= 4.25 + 1
    assert reports[1]["mean_kl"] < reports[0]["mean_kl"]
    groups = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["config_groups"]
    by_bits = {group["weights"]["num_bits"]: group["targets"] for group in groups.values()}
    assert set(by_bits) == {4, 8}
    assert sorted(by_bits[8]) == sorted(reports[1]["other_grids"])
    assert len(by_bits[4]) + len(by_bits[8]) == LAYERS * len(SHAPES)
    # Engines multiply q, k and v together.
    assert all(name.replace("q_proj", "k_proj") in by_bits[8] for name in by_bits[8])
    found, exact = read(tmp_path / "out"), tensors()
    for bits, modules in by_bits.items():
        weights = next(group["weights"] for group in groups.values() if group["weights"]["num_bits"] == bits)
        values = decompress(found, modules[0], weights)
        assert np.abs(values - exact[f"{modules[0]}.weight"]).max() < (0.01 if bits == 8 else 0.2)


def test_rows_that_are_not_whole_groups_stay_in_16_bits(quantize: Quantize, tmp_path: Path) -> None:
    result = quantize(tmp_path / "out", "--method", "rtn", "--group-size", "128")
    assert result.status == 0
    for stage in ("qkv", "o", "gate_up"):
        assert f"{stage} stays in 16 bits: its rows are not whole groups of 128\n" in result.err
    found = read(tmp_path / "out")
    assert "model.layers.0.mlp.down_proj.weight_packed" in found
    assert "model.layers.0.mlp.up_proj.weight" in found
    assert FFN % 128 == 0 != HIDDEN % 128


@pytest.mark.parametrize(
    "arguments", [["--method", "gptq"], ["--method", "awq"], ["--keep", "auto", "--method", "rtn"]]
)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_killed_run_continues_to_the_same_bytes(
    arguments: list[str], layer: int, quantize: Quantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quantize(tmp_path / "whole", *arguments).status == 0

    def killed(target: Path, state: Any) -> None:
        if state.done == layer + 1:
            raise KeyboardInterrupt
        save(target, state)

    save = quantize_run.state.save
    monkeypatch.setattr(quantize_run.state, "save", killed)
    interrupted = quantize(tmp_path / "out", *arguments)
    assert (interrupted.status, interrupted.err.splitlines()[-1]) == (
        130,
        "octavo-server quantize: interrupted; the same command continues",
    )
    assert not (tmp_path / "out/model.safetensors.index.json").exists()
    monkeypatch.setattr(quantize_run.state, "save", save)
    computed = []
    original = quantize_run.quantize_layer
    monkeypatch.setattr(quantize_run, "quantize_layer", lambda *a, **k: computed.append(a[1]) or original(*a, **k))
    assert quantize(tmp_path / "out", *arguments).status == 0
    assert computed == list(range(layer, LAYERS))
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if "octavo" not in path.name}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name in files}


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    class Full(dict[str, Stored]):
        def values(self) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_shard(tmp_path / "model.safetensors", Full())
    assert not (tmp_path / "model.safetensors").exists()


def test_codes_are_packed_from_the_lowest_bits() -> None:
    codes = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 15], [0, 0, 0, 0, 0, 0, 0, 15, 0]], np.uint8)
    assert pack(codes, 4).view(np.uint32).tolist() == [[0x87654321, 15], [0xF0000000, 0]]
    assert pack(codes[:, :5], 8).view(np.uint32).tolist() == [[0x04030201, 5], [0, 0]]


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_sources_of_other_types(dtype: str, quantize: Quantize, tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source", dtype, torch_dtype="float16" if dtype == "F16" else "float32")
    result = quantize(tmp_path / "out", "--format", "int8", source=folder)
    assert result.status == 0, result.err
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["torch_dtype"] == ("float16" if dtype == "F16" else "bfloat16")
    found, exact = read(tmp_path / "out")["model.embed_tokens.weight"], tensors()["model.embed_tokens.weight"]
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("form", [*FORMS, "auto", "kept"])
def test_octavo_serves_what_was_measured(form: str, quantize: Quantize, text: Path, tmp_path: Path) -> None:
    """The loaded model has the values of the folder, and its perplexity is the reported one."""
    own = {"auto": ["--method", "rtn", "--keep", "auto", "--keep-bits", "1"], "kept": ["--keep", "*.layers.1.*"]}
    assert quantize(tmp_path / "out", *(own.get(form) or FORMS[form][0])).status == 0
    loaded = load_model(str(tmp_path / "out"))
    assert isinstance(loaded, LoadedModel)
    found = read(tmp_path / "out")
    groups = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["config_groups"]
    by_module = {module: group["weights"] for group in groups.values() for module in group["targets"]}
    for number, layer in enumerate(loaded.weights.layers):
        for name in SHAPES:
            module, field = f"model.layers.{number}.{name}", name.partition(".")[2].removesuffix("_proj")
            stored = found.get(f"{module}.weight")
            if f"{module}.weight_scale" in found:
                stored = decompress(found, module, by_module.get(module, by_module.get("Linear")))
            np.testing.assert_allclose(dequantize(getattr(layer, field)), stored, rtol=1e-6, atol=1e-7)
    report = json.loads((tmp_path / "out/octavo_quantize.json").read_text())
    windows = windows_of(text.read_text(), loaded.text.tokenizer, 48, "")
    assert perplexity(loaded, windows.held_out) == pytest.approx(report["perplexity_after"], rel=1e-4)


def perplexity(model: LoadedModel, windows: np.ndarray) -> float:
    """By the reference backend's logits."""
    nats = []
    for tokens in windows:
        backend = ReferenceBackend(model.config, model.weights, num_blocks=3, block_size=16, max_model_len=48)
        positions = np.arange(len(tokens), dtype=np.int32)
        batch = Batch(
            tokens=tokens.astype(np.int32),
            positions=positions,
            slots=positions,
            query_start=np.array([0, len(tokens)], np.int32),
            seq_len=np.array([len(tokens)], np.int32),
            block_table=np.array([[0, 1, 2]], np.int32),
            sample=SampleRows.greedy(positions, positions + 1),
        )
        logits = backend.logits(batch).astype(np.float64)
        chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
        nats += (np.log(np.exp(logits[:-1]).sum(axis=1)) - chosen).tolist()
    return float(np.exp(np.mean(nats)))
