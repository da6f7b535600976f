"""Rotary parameters of a GGUF file: metadata, or tensors of divisors (Llama 3, LongRoPE)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.gguf import GgufFile
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.rope import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    long_magnitude,
    yarn_magnitude,
)

# Llama 3's scaling constants: GGUF stores only the resulting divisors.
_LOW_FREQUENCY, _HIGH_FREQUENCY, _ORIGINAL_POSITIONS = 1.0, 4.0, 8192

Number = Callable[..., float]
Divisors = Callable[[str], NDArray[np.float32] | None]


def read_scaling(file: GgufFile, number: Number, divisors: Divisors, theta: float, dim: int) -> RopeScaling | None:
    """`number` reads a key of the architecture; `divisors` a vector of dim / 2 numbers, None if it is missing.

    Raises ModelError for an unknown or incomplete scaling.
    """
    architecture = file.metadata.get("general.architecture")
    original = int(number("rope.scaling.original_context_length", number("context_length")))
    if original <= 1:
        raise ModelError(f"{file.path}: {architecture}.rope.scaling.original_context_length is {original}")
    given = divisors("rope_freqs.weight")
    if given is not None:
        return _divided(given, theta, dim, original)
    short, long = divisors("rope_factors_short.weight"), divisors("rope_factors_long.weight")
    if short is not None and long is not None:
        grown = number("context_length") / original
        return LongScaling(
            short=tuple(short.tolist()),
            long=tuple(long.tolist()),
            original_max_position=original,
            magnitude=number("rope.scaling.attn_factor", long_magnitude(grown, original)),
        )
    kind = file.metadata.get(f"{architecture}.rope.scaling.type", "linear")
    factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0))
    if factor <= 0:
        raise ModelError(f"{file.path}: {architecture}.rope.scaling.factor is {factor}, expected more than 0")
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            original_max_position=original,
            magnitude=number("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor),
            beta_fast=number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=number("rope.scaling.yarn_beta_slow", 1.0),
            truncate=architecture != "gpt-oss",  # by its configuration; files do not say so
        )
    raise UnsupportedModelError(
        f"{file.path}: {architecture}.rope.scaling.type is {kind!r}; supported are none, linear, yarn, and longrope "
        "with the tensors rope_factors_short.weight and rope_factors_long.weight"
    )


def _divided(divisors: NDArray[np.float32], theta: float, dim: int, original: int) -> RopeScaling:
    """Llama 3's scaling, recovered from the divisors that llama.cpp stores, or the divisors themselves."""
    scaling = Llama3Scaling(float(divisors.max()), _LOW_FREQUENCY, _HIGH_FREQUENCY, _ORIGINAL_POSITIONS)
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    if np.allclose(plain / scaling.apply(plain, 0), divisors, rtol=1e-3):
        return scaling
    each = tuple(divisors.tolist())
    return LongScaling(each, each, original, magnitude=1.0)
