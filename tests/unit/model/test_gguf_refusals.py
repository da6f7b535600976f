"""GGUF files that the native decoder does not compute: the sentence names the architecture and what is supported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.model_loader import load_model

from .conftest import write_gguf

Tensors = dict[str, np.ndarray]


def keys(**values: Any) -> Callable[[gguf.GGUFWriter], None]:
    def add(writer: gguf.GGUFWriter) -> None:
        for name, value in values.items():
            key = name.replace("__", ".")
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)

    return add


@pytest.mark.parametrize(
    ("architecture", "extra", "message"),
    [
        ("phimoe", {}, r"architecture 'phimoe' is not supported; supported are llama, .*, qwen35moe$"),
        (
            "qwen3",
            {"qwen3__expert_count": 4},
            r"not supported in qwen3 models; supported are those of llama, deepseek2",
        ),
        ("llama", {"llama__rope__dimension_count": 4}, r"llama.rope.dimension_count is 4 .* supported in phi3, "),
        (
            "qwen2",
            {"qwen2__attention__sliding_window": 24},
            r"qwen2.attention.sliding_window is 24 of 128 .* safetensors",
        ),
        ("llama", {"llama__rope__scaling__type": "longrope"}, r"type is 'longrope'; supported are none, linear, yarn"),
        ("mpt", {"mpt__attention__max_alibi_bias": 4.0}, r"mpt.attention.max_alibi_bias is 4.0, in mpt models 8 is"),
        (
            "nemotron_h_moe",
            {"nemotron_h_moe__moe_latent_size": 32},
            r"in nemotron_h_moe models; supported are experts on",
        ),
        (
            "deci",
            {
                "deci__attention__head_count": [2],
                "deci__attention__head_count_kv": [0],
                "deci__feed_forward_length": [48],
            },
            r"layer 0 has a matrix in the place of attention .* in deci models; supported are layers with",
        ),
    ],
)
def test_the_sentence_names_the_architecture_and_what_is_supported(
    tmp_path: Path, tensors: Tensors, architecture: str, extra: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture, extra=keys(**extra))
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(str(path))
