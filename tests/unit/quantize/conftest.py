"""A model of a few thousand weights as a safetensors folder, and a text for its tokens."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from octavo_inference.tools.quantize import command

from ..model.conftest import safetensors_bytes  # noqa: TID252 -- tests are no package

HIDDEN, HEADS, KV_HEADS, DIM, FFN, LAYERS = 64, 4, 2, 16, 128, 3
VOCAB = len(string.ascii_letters)
SHAPES = {
    "self_attn.q_proj": (HEADS * DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * DIM),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights by their names in safetensors checkpoints, exact in bfloat16."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": rng.standard_normal((VOCAB, HIDDEN))}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            found[f"model.layers.{layer}.{name}.weight"] = rng.standard_normal(shape) * shape[1] ** -0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{name}.weight"] = 1 + 0.2 * rng.standard_normal(HIDDEN)
    found["model.norm.weight"] = np.ones(HIDDEN)
    bits = {name: values.astype(np.float32).view(np.uint32) & 0xFFFF0000 for name, values in found.items()}
    return {name: values.astype(np.uint32).view(np.float32) for name, values in bits.items()}


def write_source(folder: Path, dtype: str = "BF16", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 48,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    Tokenizer(models.BPE({letter: i for i, letter in enumerate(string.ascii_letters)}, [])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors(), dtype))
    return folder


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten windows of 48 letters."""
    path = tmp_path_factory.mktemp("text") / "letters.txt"
    letters = np.random.default_rng(1).choice(list(string.ascii_letters), 480)
    path.write_text("".join(letters))
    return path


@pytest.fixture(autouse=True)
def no_log_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler would outlive the standard error of its test."""
    monkeypatch.setattr(command.json_logs, "configure", lambda _: None)


@pytest.fixture
def quantize(source: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """The command on the small model: exit status, standard output and standard error."""

    def run(target: Path, *arguments: str, source: Path = source) -> SimpleNamespace:
        status = command.main([str(source), str(target), "--calibration", str(text), *arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return run
