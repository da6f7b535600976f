"""Quantized checkpoints that transformers computes on a GPU, interpreted: log-probabilities of native kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from octavo_inference import LLM, SamplingParams
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.transformers.load_quantized import load_quantized
from octavo_inference.backends.transformers.products import workspace
from octavo_inference.checkpoints.transformers_config import ForeignConfig
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.engine import factory
from octavo_inference.model_loader import load_model

from ..unit.model.conftest import matrices, write_hf  # noqa: TID252 -- tests are no package
from ..unit.model.quantized_files import EXAMPLES, checkpoint  # noqa: TID252 -- as above

FULL = pytest.mark.full


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is visible: the interpreter."""
    monkeypatch.setattr(factory, "gpu_visible", lambda: True)


def write(folder: Path, method: str) -> dict[str, np.ndarray]:
    """Write a model. Returns the weights of its quantized layers."""
    settings, make = EXAMPLES[method]
    tensors = matrices(np.random.default_rng(0))
    return checkpoint(folder, settings, tensors, make, model_type="llama", tie_word_embeddings=True)


def scores(folder: Path, backend: str, dtype: str = "auto") -> list[float]:
    llm = LLM(str(folder), backend=backend, dtype=dtype, kv_memory="4Mi", max_model_len=32, block_size=8)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=3)
    [output] = llm.generate("abcabc", params, use_tqdm=False)[0].outputs
    return [value for entry in output.logprobs or [] for value in entry.top_logprobs]


@pytest.mark.parametrize(
    "method",
    [
        # The others take a minute each in the interpreter.
        method if method == "gptq act-order" else pytest.param(method, marks=FULL)
        for method in EXAMPLES
    ],
)
def test_logprobs_are_those_of_native_kernels(tmp_path: Path, method: str) -> None:
    write(tmp_path, method)
    np.testing.assert_allclose(scores(tmp_path, "transformers"), scores(tmp_path, "cuda"), atol=2e-3)


def test_a_layer_of_four_bits_is_multiplied_as_stored(tmp_path: Path) -> None:
    weights = write(tmp_path, "compressed-tensors")
    described = load_model(str(tmp_path), native=False).config
    assert isinstance(described, ForeignConfig)
    module = load_quantized(tmp_path, described, torch.float32, "auto", workspace(torch.device("cpu")), Tiles())
    assert module.lm_head.weight is module.model.embed_tokens.weight
    product = module.model.layers[0].mlp.down_proj
    assert product._product.parts[0].form == "int4"
    x = torch.randn(1, 2, product.in_features)
    wanted = x @ torch.from_numpy(weights["model.layers.0.mlp.down_proj"]).float().T
    torch.testing.assert_close(product(x), wanted, atol=1e-2, rtol=1e-3)


def test_a_requested_type_unpacks_the_weights(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    np.testing.assert_allclose(
        scores(tmp_path, "transformers", "float32"), scores(tmp_path, "cuda", "float32"), atol=1e-4
    )


def test_fp8_of_a_quantized_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    with pytest.raises(SettingsError, match="quantization fp8 has no effect: the checkpoint is already quantised"):
        LLM(str(tmp_path), backend="transformers", quantization="fp8", kv_memory="4Mi")


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    settings, _ = EXAMPLES["gptq"]
    tensors = matrices(np.random.default_rng(0))
    del tensors["model.norm.weight"]
    write_hf(tmp_path, tensors, model_type="llama", tie_word_embeddings=True, quantization_config=settings)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.\S+ is missing|tensor model\.norm\.weight is missing"):
        LLM(str(tmp_path), backend="transformers", kv_memory="4Mi")
