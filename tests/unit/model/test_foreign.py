"""Models left to transformers: recognised by their files alone, or refused by them with the reason."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.download.inspect import inspect
from octavo_inference.engine.factory import load_engine
from octavo_inference.model_loader import ForeignModel, LoadedModel, load_model, load_text

from .conftest import VOCAB, write_gguf, write_hf

Tensors = dict[str, np.ndarray]


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"architectures": ["OwnForCausalLM"]}, "architecture 'OwnForCausalLM' is not supported; supported are "),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"rope_scaling": {"rope_type": "unheard-of"}}, "rope scaling 'unheard-of' is not supported"),
    ],
)
def test_what_the_native_decoder_lacks_is_left_to_transformers(
    tmp_path: Path, tensors: Tensors, change: dict[str, Any], missing: str
) -> None:
    model = load_model(str(write_hf(tmp_path / "m", tensors, **change)))
    assert isinstance(model, ForeignModel)
    assert missing in model.config.missing
    assert (model.config.vocab, model.config.max_positions, model.config.eos_token_ids) == (VOCAB, 128, (0,))
    assert model.elements == sum(values.size for values in tensors.values())
    native = load_model(str(write_hf(tmp_path / "native", tensors)))
    assert isinstance(native, LoadedModel)
    assert model.config.kv_bytes_per_token(2) == native.config.kv_bytes_per_token(2)
    assert load_text(str(tmp_path / "m")).config.digest == model.config.digest


@pytest.mark.parametrize("other", [{"kv_lora_rank": 16}, {"num_key_value_heads": [2, 1]}, {"num_hidden_layers": None}])
def test_the_kv_of_layers_of_unusual_sizes_is_unknown_until_they_are_loaded(
    tmp_path: Path, tensors: Tensors, other: dict[str, Any]
) -> None:
    folder = write_hf(tmp_path / "m", tensors, **{"architectures": ["OwnForCausalLM"]} | other)
    assert load_text(str(folder)).config.kv_bytes_per_token(2) == 0


def test_any_folder_can_be_given_to_transformers_and_no_gguf_file(tmp_path: Path, tensors: Tensors) -> None:
    folder = str(write_hf(tmp_path / "m", tensors))
    assert isinstance(load_model(folder), LoadedModel)
    assert isinstance(load_model(folder, native=False), ForeignModel)
    with pytest.raises(SettingsError, match="reads safetensors folders, not GGUF"):
        load_model(str(write_gguf(tmp_path / "m.gguf", tensors)), native=False)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_without_torch_or_transformers_the_sentence_says_what_to_install(
    tmp_path: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    folder = write_hf(tmp_path / "m", tensors, architectures=["OwnForCausalLM"])
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(
        ModelError, match=f"OwnForCausalLM.* but {absent} is not installed: use the image octavo-server "
    ):
        load_engine(EngineSettings(model=str(folder)))


def test_a_model_larger_than_memory_is_refused_before_its_weights_are_read(
    tmp_path: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_hf(tmp_path / "m", tensors, architectures=["OwnForCausalLM"])
    monkeypatch.setattr("octavo_inference.engine.factory.available_memory", lambda: 1000)
    monkeypatch.setitem(sys.modules, "transformers", None)  # to import it would fail
    monkeypatch.setattr("octavo_inference.engine.factory.require_transformers", lambda _: None)
    with pytest.raises(ModelError, match=r"its weights take .* GiB of memory, 0.00 GiB are available"):
        load_engine(EngineSettings(model=str(folder)))


def test_quantized_weights_are_refused_on_cpus(tmp_path: Path, tensors: Tensors) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    changes: dict[str, Any] = {"architectures": ["OwnForCausalLM"], "quantization_config": settings}
    folder = str(write_hf(tmp_path / "m", tensors, **changes))
    message = r"native kernels read quantized weights \(gptq\), .* \(.*architecture 'OwnForCausalLM' is not supp"
    with pytest.raises(ModelError, match=message):
        load_engine(EngineSettings(model=folder, backend="cpu"))
    with pytest.raises(ModelError, match=message):
        inspect(folder)
    found = inspect(folder, transformers=True)
    assert (found.quantized, found.format, found.weights) == (True, "gptq", {})
    assert found.gpu is not None
    assert found.gpu.shares[0].weights == {"auto": sum(values.nbytes for values in tensors.values())}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_encoder_decoder": True}, "it is an encoder-decoder model"),
        ({"add_cross_attention": True}, "it is an encoder-decoder model"),
        ({"alibi": True}, r"a bias on the attention scores \(ALiBi\)"),
        ({"model_type": "bloom"}, r"a bias on the attention scores \(ALiBi\)"),
        ({"layer_types": ["linear_attention", "full_attention"]}, r"not softmax attention \(linear_attention\)"),
        ({"layers_block_type": ["recurrent", "attention"]}, r"not softmax attention \(recurrent\)"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "rope type dynamic"),
        ({"architectures": []}, "architectures is \\[\\], expected a list"),
        ({"architectures": "Own"}, "architectures is 'Own', expected a list"),
        ({"vocab_size": -1}, "vocab_size is -1, expected a positive number"),
        ({"max_position_embeddings": None}, "max_position_embeddings or n_positions .* is missing"),
    ],
)
def test_what_cannot_be_served_at_all_is_refused_in_words(
    tmp_path: Path, tensors: Tensors, change: dict[str, Any], message: str
) -> None:
    folder = write_hf(tmp_path / "m", tensors, **{"architectures": ["OwnForCausalLM"]} | change)
    with pytest.raises(ModelError, match=message) as refused:
        load_model(str(folder))
    assert str(folder) in str(refused.value)
