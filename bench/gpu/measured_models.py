"""The models of the speed measurements, with weights that need neither a file nor time to generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, TextModel
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, LatentAttention, LayerParts, Mamba2
from octavo_inference.models.weights import Format, LayerWeights, Tensor, Weights, bf16_bits, experts_of, layer_of
from octavo_inference.tokenizer.assets import TokenizerAssets

Stored = Literal["bf16", "int4"]

LLAMA_8B = ModelConfig(
    architecture="llama", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128_256,
    max_positions=131_072, rope_theta=500_000.0, norm_eps=1e-5, tied_embeddings=False, eos_token_ids=(128_001,),
)  # fmt: skip
QWEN3_14B = replace(
    LLAMA_8B, architecture="qwen3", layers=40, hidden=5120, heads=40, intermediate=17408, vocab=151_936,
    max_positions=40_960, rope_theta=1_000_000.0, norm_eps=1e-6, eos_token_ids=(151_645,), qk_norm="head",
)  # fmt: skip
QWEN3_06B = replace(QWEN3_14B, layers=28, hidden=1024, heads=16, intermediate=3072, tied_embeddings=True)
QWEN3_30B_A3B = replace(
    QWEN3_14B, architecture="qwen3_moe", layers=48, hidden=2048, heads=32, kv_heads=4, intermediate=6144,
    experts=Experts(count=128, chosen=8, intermediate=768), parts=(LayerParts(feed_forward="experts"),) * 48,
)  # fmt: skip
_LATENT = LatentAttention(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
DEEPSEEK_V2_LITE = replace(
    QWEN3_14B, architecture="deepseek_v2", qk_norm=None, layers=27, hidden=2048, heads=16, kv_heads=1,
    head_dim=_LATENT.key_dim, rotary_dim=_LATENT.rope_dim, intermediate=10_944, vocab=102_400, eos_token_ids=(100_001,),
    latent=_LATENT,
    experts=Experts(count=64, chosen=6, intermediate=1408, normalized=False, shared=2816),
    parts=(LayerParts(), *(LayerParts(feed_forward="experts"),) * 26),
)  # fmt: skip
_MAMBA_EXPERTS = LayerParts(attention=False, state=True, feed_forward="experts")
GRANITE_4_TINY = replace(
    QWEN3_14B, architecture="granitehybrid", qk_norm=None, layers=40, hidden=1536, heads=12, kv_heads=4,
    intermediate=1024, vocab=100_352, eos_token_ids=(100_257,), tied_embeddings=True,
    rotated=(False,) * 40, state=Mamba2(48, 64, 128, 1, 4),
    experts=Experts(count=64, chosen=6, intermediate=512, scoring="softmax_of_chosen", shared=1024),
    parts=tuple(
        LayerParts(feed_forward="experts") if layer % 10 == 5 else _MAMBA_EXPERTS for layer in range(40)
    ),
)  # fmt: skip
DENSE = {"qwen3-0.6b": QWEN3_06B, "llama-8b": LLAMA_8B, "qwen3-14b": QWEN3_14B}
"""What is measured unless models are named."""
MODELS = DENSE | {
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "granite-4-h-tiny": GRANITE_4_TINY,
}


def tiny(config: ModelConfig) -> ModelConfig:
    """The same flags at sizes for the interpreter; products in whole groups of 32."""
    kv_heads = 1 if config.tied_embeddings or config.latent else 2
    latent = config.latent and LatentAttention(kv_rank=32, nope_dim=16, rope_dim=16, value_dim=16)
    experts = config.experts and replace(
        config.experts, count=6, chosen=2, intermediate=32, shared=min(config.experts.shared, 32)
    )
    return replace(
        config, layers=1, hidden=64, heads=2 * kv_heads, kv_heads=kv_heads, intermediate=96, vocab=128,
        head_dim=latent.key_dim if latent else 16, rotary_dim=16, max_positions=512, eos_token_ids=(1,),
        rotated=config.rotated[:1], parts=config.parts[-1:], experts=experts, latent=latent,
        state=config.state and Mamba2(4, 16, 16, 1, 4),
    )  # fmt: skip


def config_of(name: str, *, interpret: bool) -> ModelConfig:
    """Configuration of a model by name."""
    return tiny(MODELS[name]) if interpret else MODELS[name]


def products(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's fused matrices, without those of experts, and of the head."""
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    mlp = {"gate_up": (2 * config.intermediate, config.hidden), "down": (config.hidden, config.intermediate)}
    return {
        "qkv": (heads, config.hidden),
        "o": (config.hidden, config.heads * config.head_dim),
        **(mlp if config.experts is None else {}),
        "head": (config.vocab, config.hidden),
    }


def random_model(name: str, config: ModelConfig, stored: Stored = "bf16") -> LoadedModel:
    """A model for the normal loading path, without a file. It has no tokenizer: prompts are token ids."""

    def words() -> TokenizerAssets:
        raise ModelError(f"{name} has random weights and no tokenizer: give token ids")

    text = TextModel(f"{name} (random {stored})", Path(name), config, words)
    return LoadedModel(text, config, random_weights(config, stored))


def random_weights(config: ModelConfig, stored: Stored = "bf16") -> Weights:
    """Weights of size 1 / sqrt(columns), so that activations keep their size; norms of 1.

    Row r of a matrix is a window on the same random numbers, starting at the rth (a Hankel matrix). It is a view of one
    short vector, the only memory that 28 GB of weights need here. All rows and columns differ, which is enough for
    speed. int4: q4_0 blocks in the layers, q8_0 for the embedding and the head.
    """
    rng = np.random.default_rng(0)
    matrix = _dense(rng) if stored == "bf16" else _blocks("q4_0", rng)
    table = _dense(rng) if stored == "bf16" else _blocks("q8_0", rng)
    experts = None if config.experts is None else experts_of(config, matrix, _dense(rng))
    made: dict[LayerParts, LayerWeights] = {}
    for number in range(config.layers):
        part = config.part(number)
        if part not in made:
            fed = experts if part.feed_forward == "experts" else None
            made[part] = layer_of(config, matrix, _ones, fed, number)
    layers = tuple(made[config.part(number)] for number in range(config.layers))
    embedding = table(config.vocab, config.hidden)
    head = embedding if config.tied_embeddings else table(config.vocab, config.hidden)
    return Weights(embedding, layers, _ones(config.hidden), head)


def table_bytes(config: ModelConfig, stored: Stored) -> int:
    """Bytes of an embedding on the device, of which a step reads a few rows: 0 where it is tied to the head."""
    if config.tied_embeddings:
        return 0
    # q8_0: a byte for each value and a half-precision scale for every 32.
    return config.vocab * config.hidden * (64 if stored == "bf16" else 34) // 32


def _dense(rng: np.random.Generator) -> Callable[[int, int], Tensor]:
    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal(rows + columns, dtype=np.float32) / np.float32(columns**0.5)
        data = as_strided(bf16_bits(values), (rows, columns), (2, 2), writeable=False)
        return Tensor("bf16", (rows, columns), data)

    return matrix


def _blocks(format_: Format, rng: np.random.Generator) -> Callable[[int, int], Tensor]:
    """Blocks of 32 with a half-precision scale in front; each row begins one block later."""
    size, levels = {"q4_0": (18, 16), "q8_0": (34, 256)}[format_]

    def matrix(rows: int, columns: int) -> Tensor:
        count = columns // 32
        blocks = rng.integers(0, 256, (rows + count, size), dtype=np.uint8)
        scale = np.float16(4 / levels / columns**0.5)
        blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        data = as_strided(blocks.reshape(-1), (rows, count * size), (size, 1), writeable=False)
        return Tensor(format_, (rows, columns), data)

    return matrix


def _ones(size: int) -> Tensor:
    return Tensor("f32", (size,), np.ones(size, np.float32))
