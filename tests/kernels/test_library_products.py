"""Products of torch's libraries: what they compute, and that a GPU gets operands as its library requires them.

Fake tensors have the type, shape and strides of a GPU's, and torch checks these as it does before a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as Torch
from torch._subclasses.fake_tensor import FakeTensorMode

from octavo_inference.backends.cuda import library_products
from octavo_inference.backends.cuda.device import Fp8Products
from octavo_inference.backends.cuda.kernels.weight_layouts import Layout
from octavo_inference.backends.cuda.library_products import (
    GROUP,
    dense,
    fp8,
    grouped_operands,
    scaled_operands,
    scales_groups,
    scales_rows,
)
from octavo_inference.backends.cuda.linear import quantize_rows
from octavo_inference.backends.cuda.weight_loading import _multiplies_in_fp8
from octavo_inference.backends.cuda.weight_plan import Part
from octavo_inference.models.weights import Tensor


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 33), (17, 130, 96)])
@pytest.mark.parametrize("kinds", [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_dense(record: Any, m: int, n: int, k: int, kinds: tuple[str, str], with_bias: bool) -> None:
    random = torch.Generator().manual_seed(m)
    kind, result = (getattr(torch, name) for name in kinds)
    x, weights = (torch.randn(rows, k, generator=random).to(kind) for rows in (m, n))
    bias = torch.randn(n, generator=random).to(kind) if with_bias else None
    wide = torch.full((m + 1, n + 4), float("nan"), dtype=result)
    dense(x, weights, bias, wide[:m, 2 : n + 2])
    expected = x.double() @ weights.double().T + (0 if bias is None else bias.double())
    error = (wide[:m, 2 : n + 2].double() - expected).abs()
    assert (error <= torch.finfo(result).eps * expected.abs() + 1e-4).all()
    assert wide[m:].isnan().all()
    assert wide[:, :2].isnan().all()
    assert wide[:, n + 2 :].isnan().all()
    record("mm", (m, n, k), " to ".join(kinds), float((error / expected.abs().max()).max()))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("stride", [48, 64])
def test_a_gpu_returns_logits_in_float32(monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    x, weights = (torch.empty(rows, 64, dtype=torch.bfloat16, device="cuda") for rows in (5, 48))
    out = torch.empty(5, stride, device="cuda")[:, :48]
    given: list[torch.dtype] = []
    multiply = torch.mm

    def watched(x: Torch, weights: Torch, **named: Any) -> Torch:
        given.extend([x.dtype, weights.dtype])
        return multiply(x, weights, **named)

    monkeypatch.setattr(torch, "mm", watched)
    dense(x, weights, None, out)
    assert given == [torch.bfloat16] * 2


def on_gpu(m: int, n: int, k: int) -> tuple[Torch, Torch, Torch, Torch]:
    x, weights = (torch.empty(rows, k, dtype=torch.uint8, device="cuda") for rows in (m, n))
    # As in the server: scales of activations are the start of a longer workspace.
    return x, torch.empty(2 * m, device="cuda")[:m], weights, torch.empty(n, device="cuda")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("m", "n", "k"), [(65, 48, 64), (512, 6144, 4096), (66, 16, 16)])
def test_operands_are_as_the_library_requires_them(m: int, n: int, k: int) -> None:
    assert scales_rows(n, k)
    found = torch._scaled_mm(*scaled_operands(*on_gpu(m, n, k)), out_dtype=torch.bfloat16)
    assert (found.shape, found.dtype) == ((m, n), torch.bfloat16)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("n", "k"), [(40, 64), (48, 72)])
def test_shapes_that_the_library_refuses_are_known_before(n: int, k: int) -> None:
    assert not scales_rows(n, k)
    with pytest.raises(RuntimeError, match="divisible by 16"):
        torch._scaled_mm(*scaled_operands(*on_gpu(65, n, k)), out_dtype=torch.bfloat16)


@pytest.mark.usefixtures("fake")
def test_a_gpu_multiplies_in_fp8_without_fast_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda *_, **named: calls.append(named))
    x, x_scales, weights, scales = on_gpu(65, 48, 64)
    out = torch.empty(65, 48, dtype=torch.bfloat16, device="cuda")
    library_products.fp8(x, x_scales, weights, scales, None, out)
    assert calls == [{"out_dtype": torch.bfloat16, "out": out}]


@pytest.mark.parametrize("with_bias", [False, True])
def test_fp8_without_a_gpu_is_the_same_function(with_bias: bool) -> None:
    random = torch.Generator().manual_seed(0)
    (x, x_scales), (weights, scales) = (quantize_rows(torch.randn(rows, 64, generator=random)) for rows in (70, 48))
    bias, out = torch.randn(48, generator=random) if with_bias else None, torch.empty(70, 48)
    fp8(x, x_scales, weights, scales, bias, out)
    left, right, left_scales, right_scales = scaled_operands(x, x_scales, weights, scales)
    expected = (left.double() * left_scales) @ (right.double() * right_scales) + (0 if bias is None else bias)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


BY_ROW, BLOCKS = Layout("fp8", factors=True), Layout("fp8", 128)
ALL = Fp8Products(rows=True, groups=True)


@pytest.mark.parametrize(
    ("shapes", "supported", "expected"),
    [
        ([(BY_ROW, 48, 64)], ALL, True),
        ([(BY_ROW, 48, 64)], Fp8Products(), False),
        ([(BY_ROW, 40, 64)], ALL, False),
        ([(BY_ROW, 48, 72)], ALL, False),
        ([(Layout("bf16"), 48, 64)], ALL, False),
        ([(BY_ROW, 48, 64), (Layout("bf16"), 48, 64)], ALL, False),
        ([(BLOCKS, 48, 256)], ALL, True),
        ([(BLOCKS, 48, 256)], Fp8Products(rows=True), False),
        ([(BLOCKS, 40, 256)], ALL, False),
        ([(Layout("fp8", 64), 48, 256)], ALL, False),
    ],
)
def test_which_matrices_are_multiplied_in_fp8(
    shapes: list[tuple[Layout, int, int]], supported: Fp8Products, expected: bool
) -> None:
    parts = [
        Part(layout, (Tensor("f32", (rows, cols), np.zeros((rows, cols), np.float32)),), (None,))
        for layout, rows, cols in shapes
    ]
    assert _multiplies_in_fp8(parts, supported) is expected


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("m", "n", "k"), [(132, 48, 256), (512, 6144, 4096), (2048, 28672, 4096)])
def test_operands_in_groups_are_as_the_library_requires_them(m: int, n: int, k: int) -> None:
    """The sizes are checked by torch here, the strides below only by cuBLAS: pytorch/pytorch#166752."""
    assert scales_groups(n, k)
    x, weights = (torch.empty(rows, k, dtype=torch.uint8, device="cuda") for rows in (m, n))
    x_scales, scales = (torch.empty(k // GROUP, rows, device="cuda") for rows in (m, n))
    operands = grouped_operands(x, x_scales, weights, scales)
    found = torch._scaled_mm(*operands, out_dtype=torch.bfloat16)
    assert (found.shape, found.dtype) == ((m, n), torch.bfloat16)
    assert operands[2].stride() == (1, m)
    assert operands[3].t().shape == (n, k // GROUP)
    assert operands[3].t().stride() == (1, n)
