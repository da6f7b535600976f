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
def _gated(gate_up, out, gate_up_stride, out_stride, width, GELU: tl.constexpr, TILE: tl.constexpr):
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < width
    at = gate_up + row * gate_up_stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    bent = gate
    if GELU:
        # (1 + tanh(x)) / 2 is sigmoid(2 x), which loses no digits where tanh is close to -1.
        bent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi)
    result = gate * tl.sigmoid(bent) * up
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=inside)


def gated(gate_up: Torch, out: Torch, activation: str) -> None:
    """Apply the activation to the gate and multiply by the other half: out = activation(gate) * up.

    gate_up [T, 2 I] (gate, then up), out [T, I], of any float type; rows may have any stride, elements are contiguous.
    """
    rows, width = out.shape
    if rows:
        _gated[(rows, triton.cdiv(width, _TILE))](
            gate_up, out, gate_up.stride(0), out.stride(0), width, GELU=activation == "gelu_tanh", TILE=_TILE,
            **launch_options(),
        )  # fmt: skip
