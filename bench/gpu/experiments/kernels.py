"""Products and attention at the shapes of the measured models, as the engine launches them.

Bytes are the minimum traffic, from the cases' own counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.gpu.cases.attention import Attention
from bench.gpu.cases.case import Place, Trial, size_of
from bench.gpu.cases.linear import LAYOUTS, planes
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS
from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import find_tiles
from octavo_inference.backends.cuda.linear import DeviceMatrix, Linear
from octavo_inference.models.config import ModelConfig

MOST_ROWS = 8192
"""Rows of x at most."""


@dataclass(frozen=True, slots=True)
class Work:
    """A case, and its minimum number of operations."""

    trial: Trial
    operations: int


def float8(setting: Setting) -> bool:
    """Return True if the card's kernels support float8 keys."""
    return setting.device.type == "cuda" and torch.cuda.get_device_capability() >= FP8_CAPABILITY


def products(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's fused matrices, and of the head."""
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    return {
        "qkv": (heads, config.hidden),
        "o": (config.hidden, config.heads * config.head_dim),
        "gate_up": (2 * config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
        "head": (config.vocab, config.hidden),
    }


def product(setting: Setting, place: Place, model: str, name: str, stored: str, m: int) -> Work:
    """A product as the engine runs it; the matrix is kept for the next number of rows."""
    n, k = (place.pick(size, small) for size, small in zip(products(MODELS[model])[name], (77, 64), strict=True))
    linear = setting.keep.get((model, name, stored), lambda: linear_of(place, stored, n, k))
    # Logits are float32, other outputs have the activations' type.
    x, out = place.randn(m, k), place.empty(m, n, dtype=torch.float32 if name == "head" else None)
    [matrix] = linear.parts
    kept = [t for t in (matrix.values, matrix.scales, matrix.minimums) if t is not None]
    return Work(Trial(lambda: linear(x, out), list, 0.0, size_of(x, out, *kept)), 2 * m * n * k)


def linear_of(place: Place, stored: str, n: int, k: int) -> Linear:
    """A random matrix on the device."""
    layout, found = LAYOUTS[stored], planes(place, LAYOUTS[stored], n, k)
    matrix = DeviceMatrix(layout, k, found.values, found.scales, found.minimums)
    gpu = place.device.type == "cuda"
    # As in the server: with float8 weights the activations are float8 where the GPU multiplies it, and tiles are the
    # GPU's own.
    eight = gpu and stored == "fp8" and torch.cuda.get_device_capability(place.device) >= FP8_CAPABILITY
    return Linear(
        (matrix,),
        (None,),
        place.empty(WORKSPACE, dtype=torch.float32),
        fp8_activations=place.empty(MOST_ROWS * k, dtype=torch.uint8) if eight else None,
        tiles=find_tiles(torch.cuda.get_device_name(place.device) if gpu else "interpreter"),
    )


def attention(place: Place, config: ModelConfig, batch: int, queries: int, before: int, pool: str) -> Work:
    """Attention of one layer; decodes are split as the engine splits them."""
    shape = Attention(
        config.heads, config.kv_heads, config.head_dim, ((queries, before),) * batch, pool=pool, split=queries == 1
    )
    pairs = batch * (queries * before + queries * (queries + 1) // 2)
    return Work(shape.prepare(place), 4 * config.heads * config.head_dim * pairs)
