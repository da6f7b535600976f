"""What a model computes of a pooled hidden state on the host: dense modules of an embedding, or a score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HeadActivation = Literal["none", "tanh", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class HeadStage:
    """activation(weight @ x + bias), then a LayerNorm if it has one. `weight` [out, in], the others [out]; float32."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    activation: HeadActivation = "none"
    norm: NDArray[np.float32] | None = None
    norm_bias: NDArray[np.float32] | None = None
    norm_eps: float = 1e-5

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs [out] for a vector [in]. One at a time: the bits of a product depend on the number of rows."""
        y: NDArray[np.float32] = self.weight @ x
        y = activate(self.activation, y if self.bias is None else y + self.bias)
        if self.norm is None:
            return y
        centred = y - y.mean()
        y = centred / np.sqrt(np.square(centred).mean() + np.float32(self.norm_eps)) * self.norm
        return y if self.norm_bias is None else y + self.norm_bias


@dataclass(frozen=True, slots=True)
class PooledHead:
    """The stages, one after another; at least one."""

    stages: tuple[HeadStage, ...]

    def __call__(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs [size] for a pooled state [hidden]."""
        for stage in self.stages:
            pooled = stage(pooled)
        return pooled

    @property
    def size(self) -> int:
        """Elements of an output."""
        return len(self.stages[-1].weight)


def activate(name: HeadActivation, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """An activation by its name."""
    if name == "none":
        return x
    if name == "tanh":
        return np.tanh(x)
    if name == "relu":
        return x.clip(min=0)
    found: NDArray[np.float64]
    if name == "gelu":
        found = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    elif name == "gelu_tanh":
        found = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:  # x / (1 + exp(-x)) or 1 / (1 + exp(-x)), where exp does not overflow
        logistic = 0.5 * (1 + np.tanh(0.5 * x.astype(np.float64)))
        found = logistic if name == "sigmoid" else x * logistic
    return found.astype(np.float32)
