"""Models of the size that people run, with random weights: a Q4_K_M-like GGUF file, and the same weights in bf16."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from bench.lib import checkpoint, random_gguf
from bench.lib.processes import CACHE
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.config import ModelConfig

LLAMA_1B = ModelConfig(
    architecture="llama",
    layers=16,
    hidden=2048,
    heads=32,
    kv_heads=8,
    head_dim=64,
    intermediate=8192,
    vocab=128_256,
    max_positions=131_072,
    rope_theta=500_000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    eos_token_ids=(2,),
)
QWEN3_4B = replace(
    LLAMA_1B,
    architecture="qwen3",
    layers=36,
    hidden=2560,
    head_dim=128,
    intermediate=9728,
    vocab=151_936,
    max_positions=40_960,
    rope_theta=1_000_000.0,
    norm_eps=1e-6,
    qk_norm="head",
)
MODELS = {"1b": LLAMA_1B, "4b": QWEN3_4B}
NAMES = {"1b": "Llama-3.2-1B", "4b": "Qwen3-4B"}
# Part of the key: to be counted up when the same shape gives other bytes.
_RECIPE = 1


def config_of(name: str, scale: int = 1) -> ModelConfig:
    """The shape of "1b" or "4b", with its layers divided by `scale`."""
    config = MODELS[name]
    return replace(config, layers=max(1, config.layers // scale))


def folder_of(config: ModelConfig) -> Path:
    """The folder of a shape's files below `CACHE`: another shape, format or recipe is another folder."""
    described = repr((config, list(random_gguf.tensors(config)), _RECIPE))
    key = hashlib.sha256(described.encode()).hexdigest()[:12]
    return CACHE / "models" / f"{config.architecture}-{config.hidden}x{config.layers}-{key}"


def gguf_bytes(config: ModelConfig) -> int:
    """Bytes of the GGUF file's weights."""
    return sum(random_gguf.size(shape, kind) for _, shape, kind in random_gguf.tensors(config))


def bf16_bytes(config: ModelConfig) -> int:
    """Bytes of the matrices in bf16."""
    shapes = [shape for _, shape, _ in random_gguf.tensors(config) if len(shape) > 1]
    return sum(2 * rows * columns for rows, columns in shapes)


def gguf_file(config: ModelConfig) -> Path:
    """The path that `write_gguf` writes to."""
    return folder_of(config) / "model.gguf"


def bf16_folder(config: ModelConfig) -> Path:
    """The path that `write_bf16` writes to."""
    return folder_of(config) / "bf16"


def write_gguf(config: ModelConfig) -> Path:
    """Write the GGUF file unless it exists. RuntimeError when the disk has no space."""
    path = gguf_file(config)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    size, free = gguf_bytes(config), shutil.disk_usage(path.parent).free
    if free < 1.05 * size:
        raise RuntimeError(f"{path} needs {size / 1e9:.1f} GB, {free / 1e9:.1f} are free: make room")
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        random_gguf.write(partial, path.parent.name, config).replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def write_bf16(config: ModelConfig) -> Path:
    """Write the GGUF file's weights as a bf16 folder unless it exists. RuntimeError when the disk has no space."""
    folder = bf16_folder(config)
    if (folder / "config.json").exists():
        return folder
    model = load_model(str(write_gguf(config)))
    assert isinstance(model, LoadedModel)  # noqa: S101 (a GGUF file)
    return checkpoint.write(folder, model.config, model.weights, model.text.tokenizer)
