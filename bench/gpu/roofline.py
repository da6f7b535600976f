"""Roofline: the limits set by memory and arithmetic, with bytes and operations counted from shapes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor, experts_of, layer_of


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak bytes and floating-point operations per second of a card."""

    bandwidth: float
    bf16: float


# NVIDIA's data sheets, without sparsity: by torch's name of the card, longer names first.
DATA_SHEET = {
    "NVIDIA B200": Rates(8.0e12, 2.25e15),
    "NVIDIA H200": Rates(4.8e12, 989e12),
    "NVIDIA H100 PCIe": Rates(2.0e12, 756e12),
    "NVIDIA H100 NVL": Rates(3.9e12, 835e12),
    "NVIDIA H100": Rates(3.35e12, 989e12),
    "NVIDIA A100-SXM4-80GB": Rates(2.039e12, 312e12),
    "NVIDIA A100 80GB PCIe": Rates(1.935e12, 312e12),
    "NVIDIA A100": Rates(1.555e12, 312e12),
    "NVIDIA L40S": Rates(0.864e12, 362e12),
    "NVIDIA L4": Rates(0.3e12, 121e12),
    "NVIDIA A10": Rates(0.6e12, 125e12),
}
PUBLISHED = Rates(4.8e12, 700e12)
"""Rates of the published ceilings of an H200: 39,552 tok/s (Qwen3-0.6B) and 8,140 (Qwen3-14B)."""


def data_sheet(card: str) -> Rates | None:
    """Data sheet of a card by its name: an L40 or an A10G does not match."""
    return next((rates for name, rates in DATA_SHEET.items() if re.match(rf"{re.escape(name)}(?!\w)", card)), None)


def layer_parameters(config: ModelConfig, *, active: bool = False) -> int:
    """Weights of the matrices of all layers, or those that a token uses: without the experts that it does not."""
    sizes: list[int] = []

    def matrix(rows: int, columns: int) -> Tensor:
        sizes.append(rows * columns)
        return Tensor("bf16", (rows, columns), np.broadcast_to(np.uint16(0), (rows, columns)))

    def norm(size: int) -> Tensor:
        return Tensor("f32", (size,), np.broadcast_to(np.float32(0), size))

    for number in range(config.layers):
        layer_of(config, matrix, norm, None, number)
        if config.part(number).feed_forward == "experts":
            experts_of(config, matrix, matrix)
    return sum(sizes) - (_unused(config) if active else 0)


def _unused(config: ModelConfig) -> int:
    """Weights of the experts that a token does not use."""
    experts = config.experts
    return 0 if experts is None else _of_experts(config) * (experts.count - experts.chosen) // experts.count


def _of_experts(config: ModelConfig) -> int:
    """Weights of all experts, without routers and the MLPs that every token uses."""
    experts = config.experts
    if experts is None:
        return 0
    mixtures = sum(config.part(number).feed_forward == "experts" for number in range(config.layers))
    return mixtures * 3 * config.hidden * experts.count * experts.intermediate


def read_share(config: ModelConfig, tokens: int) -> float:
    """Share of all weights that a step of so many tokens reads, if every expert is as likely as every other one."""
    experts = config.experts
    if experts is None:
        return 1.0
    unused = (1 - experts.chosen / experts.count) ** tokens
    return 1 - unused * _of_experts(config) / parameters(config)


def parameters(config: ModelConfig) -> int:
    """Weights of all matrices: a tied embedding counts once, an untied one in addition to the head."""
    return layer_parameters(config) + config.vocab * config.hidden * (1 if config.tied_embeddings else 2)


def load_ceiling(
    config: ModelConfig, prompts: Sequence[int], outputs: Sequence[int], rates: Rates, weight_bytes: float = 2.0
) -> float:
    """Output tokens per second of a load whose sequences all run at once, in bf16, at a card's rates.

    The number of steps is the longest output. Each step reads all weights, and each output token all K and V before it.
    Prompts are two operations for each weight and token. Weights are counted whole, even an embedding of which a step
    reads a few rows, and all experts.
    """
    keys = sum(given * out + out * (out - 1) // 2 for given, out in zip(prompts, outputs, strict=True))
    read = keys * config.kv_bytes_per_token(2) + max(outputs) * parameters(config) * weight_bytes
    used = parameters(config) - layer_parameters(config) + layer_parameters(config, active=True)
    return sum(outputs) / (read / rates.bandwidth + 2 * used * sum(prompts) / rates.bf16)


def decode_bytes(config: ModelConfig, weights: int, batch: int, context: int, kv_element: float) -> float:
    """Bytes that a step of `batch` sequences of `context` tokens must read: `weights` bytes once, K and V of all.

    Of experts, those that the sequences are expected to choose. State layers read and write each sequence's state.
    """
    kept = context * config.kv_bytes_per_token(1) * kv_element + 2 * config.state_bytes
    return weights * read_share(config, batch) + batch * kept


def prefill_operations(config: ModelConfig, tokens: int) -> int:
    """Operations of one prompt: products with all layers' weights, causal attention, and one row of the head."""
    pairs = tokens * (tokens + 1) // 2
    layers = sum(config.part(number).attention for number in range(config.layers))
    attention = 2 * layers * config.heads * (config.head_dim + config.value_dim) * pairs
    return 2 * layer_parameters(config, active=True) * tokens + attention + 2 * config.vocab * config.hidden
