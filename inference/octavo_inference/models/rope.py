"""Rotary positions: the frequencies of a model's layers, their scalings, and the table of cosines and sines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


class RopeScaling(Protocol):
    """A scaling of rotary frequencies that extends a model's context."""

    @property
    def magnitude(self) -> float:
        """Factor on cosines and sines."""
        ...

    def apply(self, frequencies: Float64, positions: int) -> Float64:
        """Frequencies of a table for `positions` positions, from the plain ones."""
        ...


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """`rope_type: llama3`: low frequencies divided by `factor`, high ones kept, a ramp in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    magnitude: float = 1.0

    def apply(self, frequencies: Float64, positions: int) -> Float64:  # noqa: ARG002 -- a Scaling
        """Depends on the frequencies alone."""
        turns = self.original_max_position * frequencies / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(ramp, 0.0, 1.0)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """`rope_type: linear`: positions divided by `factor`."""

    factor: float
    magnitude: float = 1.0

    def apply(self, frequencies: Float64, positions: int) -> Float64:  # noqa: ARG002 -- a Scaling
        """Depends on the frequencies alone."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """`rope_type: yarn` (https://arxiv.org/abs/2309.00071): a ramp over the pairs' numbers, and longer cosines.

    Pairs that turn more than `beta_fast` times within the original context are kept, those that turn less than
    `beta_slow` times are divided by `factor`; `truncate` widens the ramp to whole pairs.
    """

    factor: float
    original_max_position: int
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def apply(self, frequencies: Float64, positions: int) -> Float64:  # noqa: ARG002 -- a Scaling
        """Depends on the frequencies alone."""
        pairs = len(frequencies)
        # Frequencies are theta ** (-i / pairs): their logarithms are evenly spaced.
        log_theta = -math.log(frequencies[-1]) * pairs / (pairs - 1)

        def pair_turning(turns: float) -> float:
            return pairs * math.log(self.original_max_position / (turns * 2 * math.pi)) / log_theta

        low, high = pair_turning(self.beta_fast), pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        ramp = np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0, 1)
        scaled: Float64 = frequencies * (1 - ramp) + frequencies / self.factor * ramp
        return scaled


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """The paper's growth of cosines and sines, which lowers the softmax temperature as the context grows."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class LongScaling:
    """`rope_type: longrope` (https://arxiv.org/abs/2402.13753): divisors per pair, of two kinds.

    A server with a longer maximum than the original context uses the long factors for all positions: keys are rotated
    when they are stored, so the choice cannot depend on the length of each sequence.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position: int
    magnitude: float

    def apply(self, frequencies: Float64, positions: int) -> Float64:
        """The long divisors when the table reaches beyond the original context."""
        divisors: Float64 = np.array(self.long if positions > self.original_max_position else self.short)
        return frequencies / divisors


def long_magnitude(factor: float, original_max_position: int) -> float:
    """LongRoPE's factor on cosines and sines for a context `factor` times the original one."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_position)) if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of a layer's queries and keys: of the `dim` leading elements of each head."""

    theta: float
    dim: int
    scaling: RopeScaling | None = None

    def table(self, positions: int) -> NDArray[np.float32]:
        """Cosines then sines, [positions, dim]: computed in float64, rounded once."""
        frequencies = self.theta ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        magnitude = 1.0
        if self.scaling is not None:
            frequencies, magnitude = self.scaling.apply(frequencies, positions), self.scaling.magnitude
        angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
        return (magnitude * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)
