"""PEFT's `target_parameters`: one pair for the matrices of all experts, in both layouts, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.adapters import save_adapter

from octavo_inference.checkpoints.peft import read_adapter
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import Tensor

COUNT, INNER, HIDDEN, RANK = 4, 24, 32, 3
CONFIG = ModelConfig(
    architecture="qwen3_moe", layers=2, hidden=HIDDEN, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=50,
    max_positions=64, rope_theta=10_000.0, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(0,),
    experts=Experts(count=COUNT, chosen=2, intermediate=INNER),
    parts=(LayerParts(feed_forward="experts"),) * 2,
)  # fmt: skip
LAYER = "model.layers.0."
EXPERTS = f"{LAYER}mlp.experts"
GATE_UP, DOWN = (2 * INNER, HIDDEN), (HIDDEN, INNER)


def pair(module: str, a: int, b: int, count: int = COUNT, rank: int = RANK, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed + a + b)
    return {
        f"{module}.lora_A.weight": rng.standard_normal((count * rank, a)).astype(np.float32),
        f"{module}.lora_B.weight": rng.standard_normal((b, count * rank)).astype(np.float32),
    }


def read(
    folder: Path,
    tensors: dict[str, np.ndarray],
    config: ModelConfig = CONFIG,
    family: str = "Qwen3MoeForCausalLM",
    **fields: Any,
) -> Adapter:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"architectures": [family]}))
    given = {"r": RANK, "lora_alpha": 2 * RANK, "target_parameters": ["mlp.experts.gate_up_proj"]}
    saved = save_adapter(folder / "adapter", tensors, **given | fields)
    none = Tensor("f32", (config.vocab, config.hidden), np.zeros((config.vocab, config.hidden), np.float32))
    return read_adapter(saved, config, ({}, {}), OuterMatrices(none, none), model, 64)


def deltas(tensors: dict[str, np.ndarray], module: str, size: tuple[int, int], scale: float = 2.0) -> np.ndarray:
    """The changes of matrices [experts, outputs, inputs], from whichever half has the inputs."""
    a, b = (tensors[f"{module}.lora_{half}.weight"] for half in "AB")
    rank = len(a) // COUNT
    straight = np.einsum("ore,eri->eoi", b.reshape(len(b), rank, COUNT), a.reshape(COUNT, rank, -1)) * scale
    return straight if straight.shape[1:] == size else straight.transpose(0, 2, 1)


def check(found: Adapter, gate_up: np.ndarray | None, down: np.ndarray | None) -> None:
    layer = found.layers[0]
    wanted = {} if down is None else {f"experts.down.{e}": down[e] for e in range(COUNT)}
    if gate_up is not None:
        wanted |= {f"experts.gate.{e}": gate_up[e, :INNER] for e in range(COUNT)}
        wanted |= {f"experts.up.{e}": gate_up[e, INNER:] for e in range(COUNT)}
    assert set(layer) == set(wanted)
    for name, delta in wanted.items():
        np.testing.assert_allclose(layer[name].merged, delta, atol=1e-5)
    assert found.layers[1] == {}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("inner", ["gate_up", "down"])
def test_both_tensors_in_either_layout_and_order(tmp_path: Path, turned: bool, inner: str) -> None:
    names = {each: EXPERTS + (".base_layer" if each == inner else "") for each in ("gate_up", "down")}
    tensors: dict[str, np.ndarray] = {}
    for each, (outputs, inputs) in (("gate_up", GATE_UP), ("down", DOWN)):
        tensors |= pair(names[each], outputs, inputs) if turned else pair(names[each], inputs, outputs)
    found = read(tmp_path, tensors)
    check(found, deltas(tensors, names["gate_up"], GATE_UP), deltas(tensors, names["down"], DOWN))
    assert found.rank == RANK


def test_one_of_both_with_other_modules_and_a_rank_of_its_own(tmp_path: Path) -> None:
    query = f"{LAYER}self_attn.q_proj"
    rng = np.random.default_rng(1)
    tensors = pair(EXPERTS, INNER, HIDDEN, rank=2)
    tensors[f"{query}.lora_A.weight"] = rng.standard_normal((RANK, HIDDEN)).astype(np.float32)
    tensors[f"{query}.lora_B.weight"] = rng.standard_normal((32, RANK)).astype(np.float32)
    found = read(tmp_path, tensors, rank_pattern={"experts.down_proj": 2}, alpha_pattern={"mlp.experts.down_proj": 5})
    assert found.layers[0]["q"].rank == RANK
    layer = {name: part for name, part in found.layers[0].items() if name != "q"}
    check(replace(found, layers=(layer, {})), None, deltas(tensors, EXPERTS, DOWN, 2.5))


def test_modules_of_earlier_versions(tmp_path: Path) -> None:
    modules = [f"{LAYER}block_sparse_moe.{name}" for name in ("input_linear", "output_linear")]
    tensors = pair(modules[0], *GATE_UP) | pair(modules[1], *DOWN)
    found = read(tmp_path, tensors, family="GraniteMoeForCausalLM")
    check(found, deltas(tensors, modules[0], GATE_UP), deltas(tensors, modules[1], DOWN))


def test_square_matrices_are_laid_out_as_the_others(tmp_path: Path) -> None:
    square = replace(CONFIG, experts=Experts(count=COUNT, chosen=2, intermediate=HIDDEN))
    down = pair(EXPERTS, HIDDEN, HIDDEN)
    straight = deltas(down, EXPERTS, (HIDDEN, HIDDEN))
    for a, b, wanted in ((HIDDEN, 2 * HIDDEN, straight), (2 * HIDDEN, HIDDEN, straight.transpose(0, 2, 1))):
        found = read(tmp_path, down | pair(f"{EXPERTS}.base_layer", a, b), square)
        for expert in range(COUNT):
            np.testing.assert_allclose(found.layers[0][f"experts.down.{expert}"].merged, wanted[expert], atol=1e-5)
    with pytest.raises(ModelError, match=r"mlp\.experts\.down_proj, whose matrices are square: which of both halves"):
        read(tmp_path, down, square)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (pair(EXPERTS, INNER, HIDDEN, rank=2), "says a rank of 3 for each of 4 experts"),
        (pair(EXPERTS, INNER, HIDDEN, count=8), "says a rank of 3 for each of 4 experts"),
        (pair(EXPERTS, INNER, HIDDEN + 8), "fit no tensor of the model's 4 experts; it was trained on another base"),
        (pair(EXPERTS, 2 * INNER, INNER), "fit no tensor of the model's 4 experts"),
        (pair("model.layers.7.mlp.experts", INNER, HIDDEN), "changes model.layers.7.mlp.experts.down_proj, which the"),
        (pair(EXPERTS, *DOWN) | pair(f"{EXPERTS}.base_layer", *DOWN), "changes .*mlp.experts.down_proj twice"),
        (pair(EXPERTS, *DOWN) | pair(f"{EXPERTS}.base_layer", *GATE_UP[::-1]), "lora_A of some experts has inputs"),
        ({f"{EXPERTS}.lora_A.weight": np.ones((12, INNER), np.float32)}, "has one of the two matrices"),
        ({k: v * np.nan for k, v in pair(EXPERTS, *DOWN).items()}, "not finite"),
        ({k: v.astype(np.int32) for k, v in pair(EXPERTS, *DOWN).items()}, "has dtype I32"),
        ({k: v[None] for k, v in pair(EXPERTS, *DOWN).items()}, "fit no tensor"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, tensors)


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    dense = replace(CONFIG, architecture="llama", experts=None, parts=())
    with pytest.raises(
        ModelError, match=r"changes model\.layers\.0\.mlp\.experts, which the served model does not have"
    ):
        read(tmp_path, pair(EXPERTS, INNER, HIDDEN), dense, "LlamaForCausalLM", r=COUNT * RANK)
