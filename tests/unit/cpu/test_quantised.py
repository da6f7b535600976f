"""Quantised weights: kept as the file has them, multiplied as bytes, near the exact product on every kernel."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import PanelLayout, WeightFormat, packed_parts
from octavo_inference.backends.cpu.native.packing import Packed, Packer, address
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, dequantize

from .test_linear import Float32, stored

# Bytes of a block, elements of it, where its fp16 numbers stand, and the packed format that keeps it.
BLOCKS: dict[BlockFormat, tuple[int, int, tuple[int, ...], abi.PackedFormat]] = {
    "q4_0": (18, 32, (0,), "int4_symmetric"),
    "q4_1": (20, 32, (0, 2), "int4"),
    "q4_k": (144, 256, (0, 2), "int4"),
    "q5_0": (22, 32, (0,), "int6"),
    "q5_1": (24, 32, (0, 2), "int6"),
    "q5_k": (176, 256, (0, 2), "int6"),
    "q6_k": (210, 256, (208,), "int6"),
    "q8_0": (34, 32, (0,), "int8"),
}


# Int8Block of int8.h.
BLOCK = np.dtype([("q", "i1", 32), ("scale", "f4"), ("sum", "f4"), ("offset", "i4", 2)])


@pytest.fixture
def packed() -> Packed:
    """Owns the memory of a test's matrices."""
    return Packed()


def random_blocks(rng: np.random.Generator, format_: BlockFormat, rows: int, cols: int, scale: float = 0.1) -> Tensor:
    """A tensor of every bit pattern, but for the fp16 numbers."""
    size, elements, halves, _ = BLOCKS[format_]
    blocks = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    for at in halves:
        values = (rng.standard_normal((rows, cols // elements, 1)) * scale).astype(np.float16)
        blocks[..., at : at + 2] = values.view(np.uint8)
    return Tensor(format_, (rows, cols), blocks.reshape(rows, -1))


def reads_bf16(kernels: Kernels) -> bool:
    """Whether quantised weights become bf16 and are multiplied by bf16 activations, as with AMX."""
    return kernels.info.quantized_block_bytes == 0


def round_rows(kernels: Kernels, a: Float32) -> NDArray[Any]:
    """The rows as input of a quantised linear: [rows, blocks] of `BLOCK`, or bf16."""
    return bf16_bits(a) if reads_bf16(kernels) else quantise_rows(kernels, a)


def quantise_rows(kernels: Kernels, a: Float32) -> NDArray[Any]:
    """The rows in 8 bits, [rows, blocks] of `BLOCK`."""
    given = np.ascontiguousarray(bf16_bits(a) if kernels.info.activation_bytes == 2 else a)
    blocks = np.zeros((len(a), a.shape[1] // 32), BLOCK)
    assert kernels.info.quantized_block_bytes in {0, BLOCK.itemsize}
    kernels.library.octavo_quantize(address(given), *a.shape, address(blocks))
    return blocks


def values(blocks: NDArray[Any]) -> NDArray[np.float64]:
    """What rounded rows stand for."""
    if blocks.dtype == np.uint16:
        return (blocks.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return (blocks["q"].astype(np.float64) * blocks["scale"][..., None]).reshape(len(blocks), -1)


def product(kernels: Kernels, team: int, matrix: abi.PackedMatrix, blocks: NDArray[Any]) -> Float32:
    out = np.full((len(blocks), matrix.rows), np.nan, np.float32)
    kernels.library.octavo_linear(team, matrix, address(blocks), address(blocks), len(blocks), address(out))
    return out


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_activations_are_rounded_to_127ths_of_the_largest(
    kernels: Kernels, rng: np.random.Generator, scale: float
) -> None:
    a = rng.standard_normal((7, 96), np.float32) * np.float32(scale)
    a[:, 32:64] = 0
    blocks = quantise_rows(kernels, a)
    exact = (bf16_bits(a).astype(np.uint32) << 16).view(np.float32) if kernels.info.activation_bytes == 2 else a
    exact = exact.reshape(7, 3, 32)
    np.testing.assert_allclose(blocks["scale"], np.abs(exact).max(-1) / 127, rtol=1e-6)
    assert (np.abs(values(blocks).reshape(exact.shape) - exact) <= blocks["scale"][..., None] * 0.5001).all()
    halves = blocks["q"].reshape(7, 3, 2, 16).sum(-1, dtype=np.int64)
    np.testing.assert_array_equal(blocks["offset"], -32 * halves)
    np.testing.assert_allclose(blocks["sum"], halves.sum(-1) * blocks["scale"], rtol=1e-5, atol=scale * 1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_elements_are_exact(kernels: Kernels, sign: int) -> None:
    a = np.ones((4, 64), np.float32) * sign
    a[1:, 16:32] *= -1
    a[2:, :16] = 0
    blocks = quantise_rows(kernels, a)
    expected = -32 * blocks["q"].reshape(4, 2, 2, 16).sum(-1, dtype=np.int64)
    np.testing.assert_array_equal(blocks["offset"], expected)


def test_activations_too_small_for_an_inverse_are_zero(kernels: Kernels) -> None:
    blocks = quantise_rows(kernels, np.full((1, 32), 1e-38, np.float32))
    assert (blocks["q"] == 0).all()
    assert (blocks["sum"] == 0).all()
    assert np.isfinite(blocks["scale"]).all()


@pytest.mark.parametrize("format_", BLOCKS)
def test_blocks_mean_what_gguf_says(format_: BlockFormat, rng: np.random.Generator) -> None:
    tensor = random_blocks(rng, format_, 16, 512)
    kind = gguf.GGMLQuantizationType[format_.upper()]
    expected = gguf.quants.dequantize(tensor.data, kind).reshape(tensor.shape)
    np.testing.assert_array_equal(dequantize(tensor), expected)


@pytest.mark.parametrize("format_", BLOCKS)
def test_native_rows_are_those_of_numpy(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, format_: BlockFormat
) -> None:
    tensor = random_blocks(rng, format_, 32, 256)
    matrix = Packer(kernels, team, "f32", packed).matrix((tensor,))
    out = np.empty((256, matrix.rows), np.float32)
    one_by_one = np.eye(256, dtype=np.float32)
    kernels.library.octavo_linear(team, matrix, address(one_by_one), None, 256, address(out))
    np.testing.assert_array_equal(out[:, :32], dequantize(tensor).T)


@pytest.mark.parametrize("format_", BLOCKS)
def test_a_product_is_that_of_the_rounded_activations(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, format_: BlockFormat
) -> None:
    tensor = random_blocks(rng, format_, 72, 512)
    matrix = Packer(kernels, team, "auto", packed).matrix((tensor,), biases=(stored(np.ones(72, np.float32)),))
    assert matrix.format == abi.PACKED[BLOCKS[format_][3]]
    assert packed.quantized
    assert packed.size == matrix.rows * PanelLayout(BLOCKS[format_][3]).row_bytes(512)
    exact_weights = dequantize(tensor).astype(np.float64)
    for rows in [*range(1, 41), 61, 130]:
        a = rng.standard_normal((rows, 512), np.float32)
        a[:, 32:64] = 0  # a block without a largest element
        blocks = round_rows(kernels, a)
        out = product(kernels, team, matrix, blocks)
        expected = values(blocks) @ exact_weights.T + 1
        # Scales that are products of two numbers are rounded to fp16, and tiles round weights to bf16.
        relative = (2.0**-10 if format_.endswith("k") else 1e-5) + (2.0**-9 if reads_bf16(kernels) else 0)
        slack = np.abs(values(blocks)) @ np.abs(exact_weights).T * relative
        assert (np.abs(out[:, :72] - expected) <= slack + 1e-4).all()
        np.testing.assert_array_equal(out[:, 72:], 0.0)


@pytest.mark.parametrize("format_", ["q4_1", "q6_k", "q8_0"])
def test_the_largest_bytes_do_not_overflow(packed: Packed, kernels: Kernels, team: int, format_: BlockFormat) -> None:
    size, elements, halves, _ = BLOCKS[format_]
    block = np.full((16, 512 // elements, size), 0x80 if format_ == "q8_0" else 0xFF, np.uint8)
    for at in halves:
        block[..., at : at + 2] = np.float16(1).reshape(1).view(np.uint8)
    tensor = Tensor(format_, (16, 512), block.reshape(16, -1))
    matrix = Packer(kernels, team, "auto", packed).matrix((tensor,))
    for value in (1.0, -1.0):
        a = np.full((5, 512), value, np.float32)
        out = product(kernels, team, matrix, round_rows(kernels, a))[:, :16]
        np.testing.assert_allclose(out, a @ dequantize(tensor).T, rtol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator
) -> None:
    for format_ in ("q4_k", "q6_k", "q8_0"):
        matrix = Packer(kernels, team, "auto", packed).matrix((random_blocks(rng, format_, 48, 768),))
        a = rng.standard_normal((70, 768), np.float32)
        together = product(kernels, team, matrix, round_rows(kernels, a))
        for start, end in ((0, 1), (1, 3), (3, 8), (8, 70)):
            np.testing.assert_array_equal(
                product(kernels, team, matrix, round_rows(kernels, a[start:end])), together[start:end]
            )


def formats(*matrices: Matrix, wanted: WeightFormat = "auto", arrangement: int = abi.CONCATENATED) -> list[str]:
    """The formats of the parts of a fused matrix."""
    return [part.layout.format for part in packed_parts(matrices, wanted, arrangement)]


@pytest.mark.parametrize("rows", [64, 40], ids=["of whole panels", "of a part of a panel"])
def test_a_matrix_fused_of_several_formats_keeps_them_when_it_can(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, rows: int
) -> None:
    q, v = random_blocks(rng, "q4_k", rows, 256), random_blocks(rng, "q6_k", 32, 256)
    mixed = Packer(kernels, team, "auto", packed).matrix((q, v))
    assert formats(q, v) == (["int4", "int6"] if rows == 64 else ["int6"])
    assert mixed.part_count == (2 if rows == 64 else 0)
    blocks = round_rows(kernels, rng.standard_normal((3, 256), np.float32))
    expected = values(blocks) @ np.concatenate([dequantize(q), dequantize(v)]).T
    got = product(kernels, team, mixed, blocks)[:, : rows + 32]
    np.testing.assert_allclose(got, expected, atol=2e-3 * np.abs(expected).max())
    assert formats(q, q, v) == (["int4", "int6"] if rows == 64 else ["int6"])
    assert formats(q, v, arrangement=abi.INTERLEAVED) == ["int6"]
    assert formats(q, random_blocks(rng, "q8_0", 32, 256), arrangement=abi.INTERLEAVED) == ["bf16"]
    assert formats(q, stored(np.zeros((4, 256), np.float32))) == (["int4", "bf16"] if rows == 64 else ["bf16"])
    assert formats(q, v, wanted="bf16") == ["bf16"]
    assert formats(q, q, wanted="f32") == ["f32"]
    q4_0 = random_blocks(rng, "q4_0", rows, 256)
    assert formats(q, q4_0, arrangement=abi.INTERLEAVED) == ["int4"]
    assert formats(q4_0, v, arrangement=abi.INTERLEAVED) == ["int6"]


@pytest.mark.parametrize("format_", ["f32", "bf16"])
def test_floats_are_rounded_to_127ths_of_the_largest_of_32(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, format_: str
) -> None:
    weights = rng.standard_normal((72, 256), np.float32) * np.float32(0.02)
    weights[3, :64] = 0
    weights[5, 32] = 20
    tensor = stored(weights, format_)
    matrix = Packer(kernels, team, "int8", packed).matrix((tensor,))
    assert matrix.format == abi.PACKED["int8"]
    weights = dequantize(tensor)
    groups = weights.reshape(72, 8, 32)
    rounding = np.broadcast_to(np.abs(groups).max(-1, keepdims=True) / 254, groups.shape).reshape(weights.shape)
    for rows in (1, 7, 40):
        blocks = round_rows(kernels, rng.standard_normal((rows, 256), np.float32))
        out = product(kernels, team, matrix, blocks)
        # Of the scale, fp16 keeps 11 bits.
        slack = np.abs(values(blocks)) @ (rounding * 1.01 + np.abs(weights) * 2.0**-10).T
        assert (np.abs(out[:, :72] - values(blocks) @ weights.T.astype(np.float64)) <= slack + 1e-4).all()


def test_int8_keeps_what_it_cannot_round(rng: np.random.Generator) -> None:
    floats, q4, q6 = stored(np.zeros((4, 256), np.float32)), *(random_blocks(rng, f, 4, 256) for f in ("q4_0", "q6_k"))
    assert formats(floats, wanted="int8") == ["int8"]
    assert formats(q4, wanted="int8") == ["int4_symmetric"]
    assert formats(q4, q6, wanted="int8") == ["int6"]
    assert formats(floats, random_blocks(rng, "q8_0", 4, 256), wanted="int8") == ["int8"]
    assert formats(floats, q4, wanted="int8") == ["bf16"]
    assert formats(stored(np.zeros((4, 48), np.float32)), wanted="int8") == ["bf16"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_does_not_vanish(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, bad: float
) -> None:
    matrix = Packer(kernels, team, "auto", packed).matrix((random_blocks(rng, "q4_0", 32, 64),))
    a = rng.standard_normal((2, 64), np.float32)
    a[1, 37] = bad
    out = product(kernels, team, matrix, round_rows(kernels, a))
    assert np.isfinite(out[0, :32]).all()
    assert not np.isfinite(out[1, :32]).any()
