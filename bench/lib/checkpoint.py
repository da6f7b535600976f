"""Writes a model as a transformers checkpoint folder: for other engines and for measured servers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Matrix, Tensor, Weights, bf16_bits, dequantize, required
from octavo_inference.tools.quantize.hf_config import config_to_hf

NAMES = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_PIECE = 8 << 20
_WORDS = 100


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct, dequantised to bf16."""
    if (folder / "config.json").exists():
        return folder
    model = load_model("smollm2")
    assert isinstance(model, LoadedModel)  # noqa: S101 (a GGUF file)
    return write(folder, model.config, model.weights, model.text.tokenizer)


def write(folder: Path, config: ModelConfig, weights: Weights, tokenizer: Tokenizer | None = None) -> Path:
    """Write the folder unless it exists. RuntimeError when the disk has no space.

    Without a tokenizer the vocabulary has a few words, as prompts are token ids. Quantized tensors become bf16.
    """
    if (folder / "config.json").exists():
        return folder
    tensors = list(named(config, weights))
    size = sum(math.prod(tensor.shape) * _stored(tensor)[1] for _, tensor in tensors)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size * 1.05:
        raise RuntimeError(
            f"{folder} needs {size / 1e9:.1f} GB, {free / 1e9:.1f} are free: make room, or use another folder"
        )
    _safetensors(folder / "model.safetensors", tensors)
    words = tokenizer or Tokenizer(WordLevel({f"w{i}": i for i in range(_WORDS)}, unk_token="w0"))  # noqa: S106
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({} if tokenizer else {"eos_token": "w1"})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    # Written last: a folder that contains it is complete.
    (folder / "config.json").write_text(json.dumps(described(config), indent=1), encoding="utf-8")
    return folder


def named(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, Matrix]]:
    """All tensors by their names in a checkpoint."""
    yield "model.embed_tokens.weight", weights.embedding
    for number, layer in enumerate(weights.layers):
        for own, theirs in NAMES.items():
            tensor = getattr(layer, own)
            if tensor is not None:
                yield f"model.layers.{number}.{theirs}.weight", tensor
    yield "model.norm.weight", required(weights.final_norm)
    if not config.tied_embeddings:
        yield "lm_head.weight", weights.lm_head


def _stored(tensor: Matrix) -> tuple[str, int]:
    """How a tensor is stored: the type in safetensors and its bytes per element."""
    return ("F32", 4) if tensor.format == "f32" else ("BF16", 2)


def _plain(tensor: Matrix) -> Tensor:
    if isinstance(tensor, Tensor) and tensor.format in {"f32", "bf16"}:
        return tensor
    return Tensor("bf16", tensor.shape, bf16_bits(np.array(dequantize(tensor), np.float32)))


def described(config: ModelConfig) -> dict[str, Any]:
    """config.json."""
    return config_to_hf(config) | {"torch_dtype": "bfloat16", "bos_token_id": config.bos_token_id or 0}


def _safetensors(path: Path, tensors: list[tuple[str, Matrix]]) -> None:
    """Write header and tensors one after the other, in pieces: a quantized model may be larger than memory in bf16."""
    header, at = {}, 0
    for name, tensor in tensors:
        kind, width = _stored(tensor)
        span = [at, at + math.prod(tensor.shape) * width]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": span}
        at = span[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            rows = tensor.shape[0]
            step = max(1, _PIECE // max(1, math.prod(tensor.shape[1:]) * _stored(tensor)[1]))
            for first in range(0, rows, step):
                piece = _plain(tensor.rows(first, min(first + step, rows)))
                np.ascontiguousarray(piece.data).tofile(file)
