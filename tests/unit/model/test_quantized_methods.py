"""Every method of quantized checkpoints: served like its floats, and sized from headers alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from tests.support.native import require_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.checkpoints import quantized
from octavo_inference.common.errors import ModelError
from octavo_inference.download.inspect import inspect
from octavo_inference.model_loader import load_model
from octavo_inference.models.weights import dequantize

from .conftest import loaded_layer, write_hf
from .quantized_files import EXAMPLES, Tensors, checkpoint

ALIASES = {"intel/auto-round", "modelopt_fp4", "modelopt_mixed"}
methods = pytest.mark.parametrize("method", EXAMPLES)


def test_each_method_has_an_example() -> None:
    named = {settings["quant_method"] for settings, _ in EXAMPLES.values()}
    assert set(quantized._METHODS) == {*named, *ALIASES}


@pytest.mark.slow
@methods
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_answers_are_those_of_the_floats(tmp_path: Path, tensors: Tensors, method: str, backend: str) -> None:
    if backend == "cpu":
        require_native()
    elif not importlib.util.find_spec("torch"):
        pytest.skip("the reference backend needs torch")
    settings, make = EXAMPLES[method]
    weights = checkpoint(tmp_path / "q", settings, tensors, make)
    write_hf(tmp_path / "f", tensors | {f"{module}.weight": values for module, values in weights.items()})
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    [found, floats] = (
        LLM(str(tmp_path / name), backend=backend, dtype="float32", kv_memory="4Mi")
        .generate("abc", params, use_tqdm=False)[0]
        .outputs[0]
        for name in ("q", "f")
    )
    assert found.token_ids == floats.token_ids
    assert found.cumulative_logprob == pytest.approx(floats.cumulative_logprob, abs=1e-3)


@methods
def test_sizes_come_from_headers(tmp_path: Path, tensors: Tensors, method: str) -> None:
    settings, make = EXAMPLES[method]
    checkpoint(tmp_path / "m", settings, tensors, make)
    whole = inspect(str(tmp_path / "m"))
    path = tmp_path / "m" / "model.safetensors"
    size, head = path.stat().st_size, path.read_bytes()
    with path.open("wb") as file:
        file.write(head[: 8 + int.from_bytes(head[:8], "little")])
        file.truncate(size)
    assert inspect(str(tmp_path / "m")) == whole
    assert whole.parameters == sum(values.size for values in tensors.values())


@methods
def test_stacked_layers(tmp_path: Path, tensors: Tensors, method: str) -> None:
    """Phi-3 has q, k and v in one linear layer, and gate and up."""
    prefix = "model.layers.0."
    for whole, parts in (
        ("self_attn.qkv_proj", [f"self_attn.{name}_proj" for name in "qkv"]),
        ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]),
    ):
        rows = [tensors.pop(f"{prefix}{part}.weight") for part in parts]
        tensors[f"{prefix}{whole}.weight"] = np.concatenate(rows)
    settings, make = EXAMPLES[method]
    expected = checkpoint(tmp_path / "m", settings, tensors, make, architectures=["Phi3ForCausalLM"])
    layer = loaded_layer(tmp_path / "m")
    for whole, matrices in (
        ("self_attn.qkv_proj", (layer.q, layer.k, layer.v)),
        ("mlp.gate_up_proj", (layer.gate, layer.up)),
        ("mlp.down_proj", (layer.down,)),
    ):
        found = np.concatenate([dequantize(matrix) for matrix in matrices])
        np.testing.assert_allclose(found, expected[prefix + whole], rtol=3e-7)


def test_a_quantized_embedding_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    settings, make = EXAMPLES["compressed-tensors"]
    embedding = tensors.pop("model.embed_tokens.weight")
    packed = make(*embedding.shape)[0]["weight_packed"][1].view(np.float32)
    checkpoint(tmp_path / "m", settings, tensors | {"model.embed_tokens.weight_packed": packed}, make)
    said = (
        r"m: tensor model\.embed_tokens\.weight is missing; the checkpoint has model\.embed_tokens\.weight_packed, and"
    )
    with pytest.raises(ModelError, match=said):
        load_model(str(tmp_path / "m"))
