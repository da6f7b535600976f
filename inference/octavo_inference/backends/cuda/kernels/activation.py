"""The gated activation between the two matrix products of an MLP.

Source: Shazeer 2020, "GLU variants improve transformer".
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 1024


@triton.jit
def activate(x, KIND: tl.constexpr):
    """An activation of `models.config.Activation`, of float32."""
    if KIND == "silu":
        return x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":  # noqa: RET505  Triton compiles one branch, but always compiles code after a return
        # (1 + tanh(x)) / 2 is sigmoid(2 x), which loses no digits where tanh is close to -1.
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2 * sqrt(2 / pi)
    elif KIND == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "relu2":
        return tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    else:
        tl.static_assert(KIND == "relu")
        return tl.maximum(x, 0.0)


@triton.jit
def _xielu(x, positive, negative):
    """Compute positive * x**2 + x / 2 above 0, else negative * (exp(x) - 1 - x) + x / 2: https://arxiv.org/abs/2411.13010."""
    low = tl.minimum(x, 0.0)
    # Close to 0 most digits of exp(x) - 1 - x cancel out: there it is the series, divided by x**2.
    series = 0.5 + low * (1 / 6 + low * (1 / 24 + low * (1 / 120 + low * (1 / 720 + low * (1 / 5040)))))
    curve = tl.where(low > -0.5, low * low * series, tl.exp(low) - 1.0 - low)
    return tl.where(x > 0, positive * x * x, negative * curve) + 0.5 * x


@triton.jit
def clamped(gate, up, limit):
    """The activation of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1), of a gate of at most `limit`, up within it."""
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)


@triton.jit
def _gated(gate_up, out, xielu, gate_up_stride, out_stride, width, KIND: tl.constexpr, GATED: tl.constexpr,
           TILE: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < width
    at = gate_up + row * gate_up_stride + columns
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if xielu is not None:  # noqa: SIM108  decided when it compiles
        result = _xielu(x, tl.load(xielu), tl.load(xielu + 1))
    else:
        result = activate(x, KIND)
    if GATED:
        result *= tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


def gated(gate_up: Torch, out: Torch, activation: str, xielu: Torch | None = None) -> None:
    """Apply the activation to the gate and multiply by the other half: out = activation(gate) * up.

    gate_up [T, 2 I] (gate, then up), out [T, I], of any float type; rows may have any stride, elements are contiguous.
    With gate_up [T, I], of an MLP without a gate, out = activation(up). xielu [2] float32, the factors of that
    activation, takes the place of `activation`.
    """
    rows, width = out.shape
    if rows:
        _gated[(rows, triton.cdiv(width, _TILE))](
            gate_up, out, xielu, gate_up.stride(0), out.stride(0), width, KIND=activation,
            GATED=gate_up.shape[1] > width, TILE=_TILE, **launch_options(),
        )  # fmt: skip
