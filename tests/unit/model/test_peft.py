"""Adapters as PEFT saves them: scaling, patterns, biases, and what is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support.adapters import save_adapter

from octavo_inference.checkpoints import peft
from octavo_inference.checkpoints.peft import Biases, read_adapter
from octavo_inference.checkpoints.peft_config import read_adapter_config
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor

CONFIG = ModelConfig(
    architecture="llama", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=50,
    max_positions=64, rope_theta=10_000.0, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(0,),
)  # fmt: skip
Q = "model.layers.0.self_attn.q_proj"
BASE = np.random.default_rng(5).standard_normal((50, 32)).astype(np.float32)
OUTER = OuterMatrices(Tensor("f32", BASE.shape, BASE), Tensor("f32", BASE.shape, BASE))
Tensors = Mapping[str, np.ndarray]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return folder


def pair(module: str = Q, rows: int = 32, columns: int = 32, rank: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows + columns + rank)
    return {
        f"{module}.lora_A.weight": rng.standard_normal((rank, columns)).astype(np.float32),
        f"{module}.lora_B.weight": rng.standard_normal((rows, rank)).astype(np.float32),
    }


def read(model: Path, tensors: Tensors, biases: Biases = ({}, {}), max_rank: int = 64, **config: Any) -> Adapter:
    folder = save_adapter(model.parent / "adapter", tensors, **config)
    return read_adapter(folder, CONFIG, biases, OUTER, model, max_rank)


@pytest.mark.parametrize(
    ("config", "rank", "scale"),
    [
        ({"r": 8, "lora_alpha": 16}, 8, 2.0),
        ({"r": 4, "lora_alpha": 4, "use_rslora": True}, 4, 2.0),
        ({"r": 8, "lora_alpha": 16, "rank_pattern": {"q_proj": 2}}, 2, 8.0),
        ({"r": 8, "lora_alpha": 16, "rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {Q: 3}}, 2, 1.5),
        ({"r": 8, "lora_alpha": 16, "rank_pattern": {"^q_proj": 2, "k_proj": 3}}, 8, 2.0),
        ({"r": 8, "lora_alpha": 16, "rank_pattern": {f"^{Q}": 2}}, 2, 8.0),
    ],
)
def test_the_scale_follows_from_alpha_and_rank(model: Path, config: dict[str, Any], rank: int, scale: float) -> None:
    tensors = pair(rank=rank)
    found = read(model, tensors, **config)
    assert found.rank == rank
    assert set(found.layers[0]) == {"q"}
    assert found.layers[1] == {}
    np.testing.assert_array_equal(found.layers[0]["q"].down, tensors[f"{Q}.lora_A.weight"])
    np.testing.assert_allclose(found.layers[0]["q"].up, tensors[f"{Q}.lora_B.weight"] * scale, rtol=1e-6)


def test_embedding_and_head(model: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8, 50)).astype(np.float16), rng.standard_normal((32, 8)).astype(np.float16)
    names = {"model.embed_tokens.lora_embedding_A": a, "model.embed_tokens.lora_embedding_B": b}
    found = read(model, names | pair("lm_head", rows=50))
    assert found.embedding is not None
    assert found.lm_head is not None
    np.testing.assert_allclose(found.embedding.merged, 2 * b.astype(np.float32) @ a.astype(np.float32), atol=1e-4)
    assert found.lm_head.up.shape == (50, 8)


def test_a_bias_takes_the_place_of_the_models(model: Path) -> None:
    before, after = np.arange(32, dtype=np.float32), np.full(32, 7, np.float32)
    found = read(model, {f"{Q}.bias": after}, ({"q_bias": Tensor("f32", (32,), before)}, {}), bias="lora_only")
    change = found.layers[0]["q"]
    assert change.rank == 0
    np.testing.assert_array_equal(change.bias, after - before)


def test_a_bias_of_the_change_is_scaled(model: Path) -> None:
    found = read(model, pair() | {f"{Q}.lora_B.bias": np.ones(32, np.float32)}, lora_bias=True)
    np.testing.assert_array_equal(found.layers[0]["q"].bias, np.full(32, 2, np.float32))


def test_adapters_of_other_numbers_differ_in_their_digest(model: Path) -> None:
    first, second = read(model, pair()), read(model, pair() | {f"{Q}.lora_B.weight": np.ones((32, 8), np.float32)})
    third = read(model, pair(), lora_alpha=17)
    assert len({first.digest, second.digest, third.digest}) == 3
    assert read(model, pair()).digest == first.digest


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (pair(), {"peft_type": "LOHA"}, "peft_type is 'LOHA'; only LORA"),
        (pair(), {"use_dora": True}, "use_dora is true: DoRA scales"),
        (
            pair(),
            {"modules_to_save": ["model.norm"]},
            "modules_to_save has 'model.norm'; whole modules are supported of",
        ),
        (pair(), {"layer_replication": [[0, 1]]}, "layer_replication"),
        (pair(), {"init_lora_weights": "pissa"}, "changes the base model's weights; convert"),
        (pair(), {"r": 0}, "a rank of 0 \\(r\\); 1 to 256"),
        (pair(rank=300), {"r": 300}, "a rank of 300"),
        (pair(rank=65), {"r": 65}, "a rank of 65; the server takes up to 64"),
        (pair(), {"rank_pattern": {"(a+)+$": 4}}, "the pattern '\\(a\\+\\)\\+\\$' is no name of modules"),
        (pair(), {"r": "8"}, "Expected `int`"),
        (pair(), {"r": 4}, "matrices of \\(8, 32\\) and \\(32, 8\\), adapter_config.json says a rank of 4"),
        (pair(rows=64), {}, "a matrix of \\(64, 8\\), the model needs \\(32, 8\\); it was trained on another base"),
        (pair(columns=40), {}, "a matrix of \\(8, 40\\), the model needs \\(8, 32\\)"),
        (pair("model.layers.7.self_attn.q_proj"), {}, "changes model.layers.7.self_attn.q_proj, which the served"),
        (pair("model.layers.0.mlp.router"), {}, "changes model.layers.0.mlp.router, which"),
        ({f"{Q}.lora_A.weight": np.ones((8, 32), np.float32)}, {}, "has one of the two matrices"),
        (pair() | {f"{Q}.lora_magnitude_vector": np.ones(32, np.float32)}, {}, "is of DoRA"),
        (pair() | {"model.norm.weight": np.ones(32, np.float32)}, {}, "is no part of a LoRA adapter"),
        (pair(columns=2000), {}, "more than any matrix of the model needs at a rank of 8"),
        (pair("lm_head", rows=60), {}, "lm_head has a matrix of \\(60, 8\\), the model needs \\(50, 8\\)"),
        (pair() | {f"{Q}.lora_B.weight": np.full((32, 8), np.nan, np.float32)}, {}, "not finite"),
        (pair() | {f"{Q}.lora_B.weight": np.ones((32, 8), np.int32)}, {}, "has dtype I32"),
        ({"model.layers.0.input_layernorm.bias": np.ones(32, np.float32)}, {}, "bias of input_norm"),
    ],
)
def test_what_cannot_be_served_is_refused(model: Path, tensors: Tensors, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(model, tensors, **config)


def test_files_that_are_missing_or_damaged(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
        read_adapter_config(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is missing; adapters are read from safetensors"):
        read_adapter(folder, CONFIG, ({}, {}), OUTER, model, 64)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ModelError, match="not a safetensors file"):
        read_adapter(folder, CONFIG, ({}, {}), OUTER, model, 64)
    save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="has no tensors"):
        read_adapter(folder, CONFIG, ({}, {}), OUTER, model, 64)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(ModelError, match="not the configuration of an adapter"):
        read_adapter_config(folder)


@pytest.mark.parametrize("kind", ["low rank", "whole"])
def test_a_file_that_becomes_shorter_fails_its_adapter_alone(
    model: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a volume, while replicas read it. A mapped file would end the process with SIGBUS."""
    config = replace(CONFIG, vocab=4096)
    matrix = np.zeros((4096, 32), np.float32)
    outer = OuterMatrices(Tensor("f32", matrix.shape, matrix), Tensor("f32", matrix.shape, matrix))
    tensors = pair(rank=64) if kind == "low rank" else {"lm_head.weight": matrix}
    folder = save_adapter(model.parent / "adapter", tensors, r=64)
    family = peft._family

    def truncated(*given: Any) -> Any:
        (folder / "adapter_model.safetensors").open("r+b").truncate(100)
        return family(*given)

    read_adapter(folder, config, ({}, {}), outer, model, 64)
    monkeypatch.setattr(peft, "_family", truncated)
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors became shorter while it was read"):
        read_adapter(folder, config, ({}, {}), outer, model, 64)
