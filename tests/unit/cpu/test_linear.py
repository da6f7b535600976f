"""Packed matrices: every row count, odd widths, both arrangements, every stored format."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packing import Packed, Packer, address
from octavo_inference.models.weights import Tensor, bf16_bits

Float32 = NDArray[np.float32]


def as_bf16(values: Float32) -> Float32:
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def stored(values: Float32, format_: str = "f32") -> Tensor:
    if format_ == "bf16":
        return Tensor("bf16", values.shape, bf16_bits(values))
    return Tensor("f32", values.shape, values)


def linear(kernels: Kernels, team: int, matrix: abi.PackedMatrix, a: Float32) -> Float32:
    native = matrix.format == abi.FORMATS["bf16"] and kernels.info.activation_bytes == 2
    given = np.ascontiguousarray(bf16_bits(a) if native else a)
    out = np.full((len(a), matrix.rows), np.nan, np.float32)
    kernels.library.octavo_linear(team, matrix, address(given), None, len(a), address(out))
    return out


@pytest.mark.parametrize("format_", ["bf16", "f32"])
def test_every_row_count(kernels: Kernels, team: int, rng: np.random.Generator, format_: str) -> None:
    weights = as_bf16(rng.standard_normal((80, 48), np.float32))
    packed = Packed()
    matrix = Packer(kernels, team, format_, packed).matrix((stored(weights),))
    for rows in [*range(1, 71), 300]:
        a = as_bf16(rng.standard_normal((rows, 48), np.float32))
        np.testing.assert_allclose(linear(kernels, team, matrix, a)[:, :80], a @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (49, 32), (200, 1600), (33, 4096)])
def test_widths_that_fill_no_panel(kernels: Kernels, team: int, rng: np.random.Generator, rows: int, cols: int) -> None:
    weights = as_bf16(rng.standard_normal((rows, cols), np.float32))
    bias = rng.standard_normal(rows, np.float32)
    packed = Packed()
    matrix = Packer(kernels, team, "bf16", packed).matrix((stored(weights, "bf16"),), biases=(stored(bias),))
    a = as_bf16(rng.standard_normal((150, cols), np.float32))
    out = linear(kernels, team, matrix, a)
    np.testing.assert_allclose(out[:, :rows], a @ weights.T + bias, rtol=1e-3, atol=1e-3 * cols**0.5)
    assert not out[:, rows:].any()


def test_sources_one_after_the_other_and_interleaved(kernels: Kernels, team: int, rng: np.random.Generator) -> None:
    first, second = (rng.standard_normal((64, 16), np.float32) for _ in range(2))
    a = np.eye(16, dtype=np.float32)
    packed = Packed()
    packer = Packer(kernels, team, "f32", packed)
    after = linear(kernels, team, packer.matrix((stored(first), stored(second))), a)
    np.testing.assert_array_equal(after, np.concatenate([first, second]).T)
    half = kernels.info.panel // 2
    between = linear(kernels, team, packer.matrix((stored(first), stored(second)), abi.INTERLEAVED), a)
    expected = np.stack([first.reshape(-1, half, 16), second.reshape(-1, half, 16)], axis=1).reshape(-1, 16)
    np.testing.assert_array_equal(between, expected.T)


@pytest.mark.parametrize("fits", [True, False], ids=["fits bfloat16", "needs float32"])
def test_half_precision_is_packed_without_loss(
    kernels: Kernels, team: int, rng: np.random.Generator, fits: bool
) -> None:
    values = rng.standard_normal((48, 32), np.float32).astype(np.float16)
    if fits:
        values = (np.round(values * 4) / 4).astype(np.float16)
    packed = Packed()
    matrix = Packer(kernels, team, "f32", packed).matrix((Tensor("f16", values.shape, values),))
    out = linear(kernels, team, matrix, np.eye(32, dtype=np.float32))
    np.testing.assert_array_equal(out[:, :48].T, values.astype(np.float32))
