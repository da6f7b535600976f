"""The look at a model: the same figures as the engine's own, from heads of files alone."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.model.conftest import matrices, write_gguf
from tests.unit.prefetch.fake_hub import COMMIT, FakeHub

from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.common.errors import ModelError
from octavo_inference.config.engine import Dtype
from octavo_inference.download import hub as prefetch
from octavo_inference.download.hub import Hub, PrefetchError
from octavo_inference.download.inspect import fill, inspect, inspect_remote, look
from octavo_inference.engine import factory
from octavo_inference.inspect_model import main
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.config import ModelConfig
from octavo_protocol.model import ModelFailure, ModelReport, decode_inspection, encode_inspection

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}


def safetensors(shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> bytes:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, count = end, 1
        for size in shape:
            count *= size
        end = start + count * (2 if dtype != "F32" else 4)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def llama_files(config: dict[str, Any] = LLAMA) -> dict[str, bytes]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 64), "model.norm.weight": (64,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (64, 64),
            prefix + "self_attn.k_proj.weight": (32, 64),
            prefix + "self_attn.v_proj.weight": (32, 64),
            prefix + "self_attn.o_proj.weight": (64, 64),
            prefix + "mlp.gate_proj.weight": (128, 64),
            prefix + "mlp.up_proj.weight": (128, 64),
            prefix + "mlp.down_proj.weight": (64, 128),
            prefix + "input_layernorm.weight": (64,),
            prefix + "post_attention_layernorm.weight": (64,),
        }
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}" * 1000,
        "model.safetensors": safetensors(shapes),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in llama_files().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_weights_take_what_the_engine_says(dtype: Dtype, kind: str, folder: Path) -> None:
    path = "smollm2" if kind == "gguf" else str(folder)
    model = load_model(path)
    assert isinstance(model, LoadedModel)
    packed = factory._weight_bytes(model.weights, "cpu", dtype)
    report = inspect(path)
    assert report.weights[dtype] == packed + model.weights.embedding.data.nbytes
    rounded = factory._weight_bytes(model.weights, "cpu", "auto", "int8")
    assert report.weights["int8"] == rounded + model.weights.embedding.data.nbytes
    assert isinstance(model.text.config, ModelConfig)
    assert report.kv_elements_per_token == model.config.kv_bytes_per_token(1)
    assert report.max_length == model.config.max_positions


def test_a_hub_model_is_described_from_the_heads_of_its_files(hub: FakeHub, tmp_path: Path, folder: Path) -> None:
    hub.files = llama_files()
    out = tmp_path / "out"
    out.mkdir()
    report = inspect_remote(Hub(hub.url, None), "org/tiny", "main", out)
    local = inspect(str(folder))
    assert report.revision == COMMIT
    assert (report.parameters, report.weights) == (local.parameters, local.weights)


@pytest.mark.parametrize("algorithm", ["FP8", "W4A8_AWQ"])
def test_the_file_of_modelopt_is_read(hub: FakeHub, tmp_path: Path, algorithm: str) -> None:
    described = json.dumps({"quantization": {"quant_algo": algorithm, "exclude_modules": ["*"]}})
    hub.files = llama_files() | {"hf_quant_config.json": described.encode()}
    if algorithm == "FP8":
        assert inspect_remote(Hub(hub.url, None), "org/tiny", "main", tmp_path).architecture == "llama"
        return
    with pytest.raises(ModelError, match=r"hf_quant_config\.json: quant_algo 'W4A8_AWQ' is not supported"):
        inspect_remote(Hub(hub.url, None), "org/tiny", "main", tmp_path)


def test_a_hub_gguf_is_described_without_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    weights = find_model("smollm2").read_bytes()
    hub.files = {"model.gguf": weights}
    report = inspect_remote(Hub(hub.url, None), "org/tiny", "main", tmp_path)
    assert report.weights == inspect("smollm2").weights
    assert hub.sent < len(weights) / 5
    used = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    assert used < len(weights) / 5, "a sparse file"


def test_a_gguf_in_several_files_is_described_from_all_of_them(hub: FakeHub, tmp_path: Path) -> None:
    parts, out = tmp_path / "parts", tmp_path / "out"
    parts.mkdir()
    out.mkdir()
    write_gguf(parts / "m.gguf", matrices(np.random.default_rng(0)), split=4)
    hub.files = {path.name: path.read_bytes() for path in parts.iterdir()}
    report = inspect_remote(Hub(hub.url, None), "org/tiny", "main", out)
    local = inspect(str(parts))
    assert (report.parameters, report.weights) == (local.parameters, local.weights)
    whole = write_gguf(tmp_path / "m.gguf", matrices(np.random.default_rng(0)))
    assert (local.parameters, local.weights) == (inspect(str(whole)).parameters, inspect(str(whole)).weights)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**LLAMA, "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "UnknownArchitecture"),
        ({**LLAMA, "num_hidden_layers": "two"}, "InvalidModel"),
    ],
)
def test_what_cannot_be_served_says_why(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    for name, data in llama_files(config).items():
        (tmp_path / name).write_bytes(data)
    found = look(str(tmp_path), None, any_architecture=False)
    assert isinstance(found, ModelFailure)
    assert found.reason == reason
    with pytest.raises(ModelError):
        inspect(str(tmp_path))


def test_the_image_of_gpus_has_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["OwnForCausalLM"]}
    native = inspect(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    refused = look(str(folder), None, any_architecture=False)
    assert isinstance(refused, ModelFailure)
    assert "torch and transformers is not installed: use the image octavo-server" in refused.message
    found = inspect(str(folder), transformers=True)
    assert native.gpu is not None
    assert found.gpu is not None
    [share] = found.gpu.shares
    assert share.kv_elements_per_token == native.gpu.shares[0].kv_elements_per_token
    assert share.weights["bfloat16"] == 2 * native.parameters


def test_another_image_knows_other_architectures(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    for name, data in llama_files(config).items():
        (tmp_path / name).write_bytes(data)
    assert look(str(tmp_path), None, any_architecture=True) == ModelReport()


def test_the_program_writes_its_report(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.files = llama_files()
    report = tmp_path / "report"
    assert main(["hf://org/tiny", "--report", str(report)]) == 0
    found = decode_inspection(report.read_bytes())
    assert isinstance(found, ModelReport)
    assert found.revision == COMMIT
    assert main(["hf://org/none", "--report", str(report)]) == 1
    failure = decode_inspection(report.read_bytes())
    assert isinstance(failure, ModelFailure)
    assert failure.reason == "ModelNotFound"
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_cache_is_filled_once_and_by_commit(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = llama_files()
    report = fill(Hub(hub.url, None), "org/tiny", "main", tmp_path)
    assert report.path == f"org--tiny/{COMMIT}"
    assert (tmp_path / report.path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    sent = hub.sent
    assert fill(Hub(hub.url, None), "org/tiny", "main", tmp_path) == report
    assert hub.sent - sent < sent, "heads alone"


def test_what_cannot_be_served_is_not_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = llama_files({**LLAMA, "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True})
    with pytest.raises(ModelError, match="encoder"):
        fill(Hub(hub.url, None), "org/tiny", "main", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_cache_says_so_with_both_numbers(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = llama_files()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    usage = prefetch.shutil.disk_usage("/")
    monkeypatch.setattr(prefetch.shutil, "disk_usage", lambda _: usage._replace(free=10))
    found = look("hf://org/tiny", tmp_path, any_architecture=False)
    assert isinstance(found, ModelFailure)
    assert found.reason == "DiskFull"
    assert "0.00 GB free and the model needs" in found.message


def test_a_disk_that_fills_up_meanwhile_is_full(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = llama_files()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Hub, "_continue", full)
    with pytest.raises(prefetch.PrefetchError, match="GB free") as refused:
        fill(Hub(hub.url, None), "org/tiny", "main", tmp_path)
    assert refused.value.reason == "DiskFull"


def test_a_report_fits_a_termination_message() -> None:
    for letter in ("x", "é", "\n"):
        said = encode_inspection(ModelFailure(reason="x" * 128, message=letter * 5000))
        assert 2048 <= len(said) <= 4096
        assert isinstance(decode_inspection(said), ModelFailure)


def test_a_hub_that_wants_patience_gets_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.codes, hub.headers = [429], {"Retry-After": "7"}
    slept: list[float] = []
    assert Hub(hub.url, None, sleep=slept.append).commit("org/tiny", "main") == COMMIT
    assert slept == [7.0]


def test_a_hub_that_wants_an_hour_is_left_alone(hub: FakeHub) -> None:
    hub.codes, hub.headers = [429], {"Retry-After": "3600"}
    slept: list[float] = []
    with pytest.raises(PrefetchError, match="3600 s of patience") as refused:
        Hub(hub.url, None, sleep=slept.append).commit("org/tiny", "main")
    assert refused.value.reason == "RateLimited"
    assert slept == []


BERT = {
    "architectures": ["BertModel"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
}


def bert_files(architecture: str = "BertModel", labels: int = 0) -> dict[str, bytes]:
    tables = {"word_embeddings": 256, "position_embeddings": 512, "token_type_embeddings": 2}
    matrices = {
        "attention.self.query": (64, 64), "attention.self.key": (64, 64), "attention.self.value": (64, 64),
        "attention.output.dense": (64, 64), "intermediate.dense": (128, 64), "output.dense": (64, 128),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"embeddings.{name}.weight": (rows, 64) for name, rows in tables.items()}
    for name, shape in matrices.items():
        shapes |= {f"encoder.layer.0.{name}.weight": shape, f"encoder.layer.0.{name}.bias": shape[:1]}
    for name in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        # The names of the first BERTs.
        shapes |= {f"{name}.LayerNorm.gamma": (64,), f"{name}.LayerNorm.beta": (64,)}
    if labels:
        shapes = {f"bert.{tensor}": shape for tensor, shape in shapes.items()}
        shapes |= {
            "bert.pooler.dense.weight": (64, 64),
            "classifier.weight": (labels, 64),
            "classifier.bias": (labels,),
        }
    return {
        "config.json": json.dumps(BERT | {"architectures": [architecture]}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(shapes, "F32"),
    }


def test_an_encoder_has_no_logits_and_kv_of_one_layer(tmp_path: Path) -> None:
    for name, data in bert_files().items():
        (tmp_path / name).write_bytes(data)
    report = inspect(str(tmp_path))
    assert (report.architecture, report.whole_prompts, report.max_length) == ("bert", True, 512)
    assert report.kv_elements_per_token == 2 * 64
    matrices = 4 * (4 * 64 * 64 + 2 * 64 * 128)
    assert report.weights["float32"] == matrices + 4 * 64 * (256 + 512)
    assert report.gpu is not None
    assert report.gpu.shares == (), "only CPUs compute it"


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_needs_one_label(labels: int, tmp_path: Path) -> None:
    for name, data in bert_files("BertForSequenceClassification", labels).items():
        (tmp_path / name).write_bytes(data)
    found = look(str(tmp_path), None, any_architecture=False)
    if labels == 1:
        assert isinstance(found, ModelReport)
    else:
        assert isinstance(found, ModelFailure)
        assert "a classifier of 3 labels is not supported; models with one label score pairs" in found.message
