"""Matrices read in pieces: kept in 4 or 8 bits, near the exact product on every kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octavo_inference.backends.cpu.native import abi, pieces
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import (
    PanelLayout,
    group_layout,
    matrix_bytes,
    packed_parts,
)
from octavo_inference.backends.cpu.native.packing import Packed, Packer, address
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups
from octavo_inference.models.weights import Matrix, bf16_bits, bf16_values, dequantize

from .test_linear import Float32, stored
from .test_quantised import quantise_rows, random_blocks, reads_bf16, values

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
IQ4_NL = (-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_BNB_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
BNB_FP4 = (*_BNB_FP4, *(-level for level in _BNB_FP4))
LEVELS = {"nf4": NF4, "fp4": FP4, "iq4_nl": IQ4_NL, "bitsandbytes fp4": BNB_FP4}
COLUMNS = 512


@dataclass(frozen=True, slots=True)
class Case:
    """A grouping, the packed format that keeps it, and bits per weight."""

    grouping: Grouping
    format: abi.PackedFormat
    bits: float

    def __str__(self) -> str:
        kind, levels = self.grouping.kind, self.grouping.levels
        name = next((name for name, known in LEVELS.items() if known == levels), kind)
        return f"{name}-{self.grouping.group}{'-minimum' * self.grouping.minimum}"


CASES = [
    Case(Grouping("int4", 16), "int4_symmetric_16", 5),
    Case(Grouping("int4", 32), "int4_symmetric", 4.5),
    Case(Grouping("int4", 64), "int4_symmetric", 4.25),
    Case(Grouping("int4", 128), "int4_symmetric", 4.125),
    Case(Grouping("int4", 512), "int4_symmetric", 4.03125),
    Case(Grouping("int4", 16, minimum=True), "int4_16", 6),
    Case(Grouping("int4", 32, minimum=True), "int4", 5),
    Case(Grouping("int4", 64, minimum=True), "int4", 4.5),
    Case(Grouping("int4", 128, minimum=True), "int4", 4.25),
    Case(Grouping("int8", 32), "int8", 8.5),
    Case(Grouping("int8", 512), "int8", 8.03125),
    Case(Grouping("int8", 64, minimum=True), "int8_minimum", 8.5),
    Case(Grouping("int8", 128, minimum=True), "int8_minimum", 8.25),
    Case(Grouping("code4", 16, levels=FP4), "code4_16", 5),
    Case(Grouping("code4", 32, levels=IQ4_NL), "code4", 4.5),
    Case(Grouping("code4", 64, levels=NF4), "code4", 4.25),
    Case(Grouping("code4", 32, minimum=True, levels=FP4), "int8_minimum", 9),
    Case(Grouping("fp8", 32), "fp8", 8.5),
    Case(Grouping("fp8", 128), "fp8", 8.125),
    Case(Grouping("fp8", 512), "fp8", 8.03125),
]


@pytest.fixture
def packed() -> Packed:
    """Owns the memory of a test's matrices."""
    return Packed()


def in_memory(groups: Groups, grouping: Grouping, order: NDArray[np.int32] | None = None) -> GroupedMatrix:
    """A matrix of groups that are all in memory."""
    rows, columns = groups.values.shape
    return GroupedMatrix("test", (rows, columns), grouping, groups.rows, order=order)


def random_groups(
    rng: np.random.Generator, grouping: Grouping, rows: int, columns: int = COLUMNS, size: float = 0.02
) -> GroupedMatrix:
    """A matrix of every value, with scales and minima of about `size`."""
    shape = (rows, columns // grouping.group)
    made = rng.integers(0, 16 if grouping.kind in {"int4", "code4"} else 256, (rows, columns), dtype=np.uint8)
    if grouping.kind == "fp8":
        made[(made & 0x7F) == 0x7F] = 0  # NaN
    scale = rng.standard_normal(shape, np.float32) * np.float32(size)
    minimum = rng.standard_normal(shape, np.float32) * np.float32(size) if grouping.minimum else None
    return in_memory(Groups(made, scale, minimum), grouping)


def exact_product(matrix: Matrix, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows @ dequantize(matrix).astype(np.float64).T


def product(kernels: Kernels, team: int, matrix: abi.PackedMatrix, a: Float32) -> tuple[Float32, NDArray[np.float64]]:
    """The kernels' product, and the rows that they multiplied: in 8 bits, bf16 or as given."""
    if matrix.order:
        order = np.ctypeslib.as_array((abi.c_int32 * matrix.cols).from_address(matrix.order))
        a = np.ascontiguousarray(a[:, order])
    given = np.ascontiguousarray(bf16_bits(a) if kernels.info.activation_bytes == 2 else a)
    blocks = quantise_rows(kernels, a) if a.shape[1] % 32 == 0 else given
    out = np.full((len(a), matrix.rows), np.nan, np.float32)
    kernels.library.octavo_linear(team, matrix, address(given), address(blocks), len(a), address(out))
    floats = matrix.format in {abi.PACKED[name] for name in ("bf16", "fp8")} or reads_bf16(kernels)
    read = given if floats else blocks
    multiplied = read.astype(np.float64) if read.dtype == np.float32 else values(read)
    if matrix.order:
        multiplied = multiplied[:, np.argsort(order)]
    return out, multiplied


def slack(kernels: Kernels, matrix: GroupedMatrix, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far a product may be from the exact one."""
    groups, group = matrix.read(0, matrix.shape[0]), matrix.grouping.group
    levels = replace(groups, minimum=None).dequantize(matrix.grouping)
    minimum = 0 if groups.minimum is None else np.repeat(groups.minimum, group, axis=1)
    if matrix.grouping.kind == "int8" and matrix.grouping.minimum:  # packed as signed bytes
        middle = np.repeat(128 * groups.scale, group, axis=1)
        levels, minimum = levels - middle, minimum + middle
    size = np.abs(groups.dequantize(matrix.grouping))
    # Scales and minima are rounded to fp16, sums to float32; tiles round weights to bf16.
    error = (np.abs(levels) + np.abs(minimum)) * (2.0**-11 + 1e-5) + size * (2.0**-8 * reads_bf16(kernels))
    if matrix.grouping.levels == NF4:
        error += np.repeat(np.abs(groups.scale), matrix.grouping.group, axis=1) * 0.004
    if matrix.order is not None:
        error = error[:, np.argsort(matrix.order)]
    return np.asarray(np.abs(rows) @ error.T + 1e-6)


def assert_near(kernels: Kernels, team: int, packed: abi.PackedMatrix, matrix: GroupedMatrix, a: Float32) -> None:
    out, multiplied = product(kernels, team, packed, a)
    error = np.abs(out[:, : matrix.shape[0]] - exact_product(matrix, multiplied))
    bound = slack(kernels, matrix, multiplied)
    assert (error <= bound).all(), (error / bound).max()
    np.testing.assert_array_equal(out[:, matrix.shape[0] :], 0.0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_is_near_the_exact_one(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, case: Case
) -> None:
    matrix = random_groups(rng, case.grouping, 72)
    result = Packer(kernels, team, "auto", packed).matrix((matrix,))
    assert result.format == abi.PACKED[case.format]
    assert packed.size == result.rows * (COLUMNS * case.bits / 8 + 4)
    assert packed.size - matrix_bytes((matrix,), "auto", 0) == (result.rows - 72) * packed.size // result.rows
    for rows in [*range(1, 14), 33, 70]:
        assert_near(kernels, team, result, matrix, rng.standard_normal((rows, COLUMNS), np.float32))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_of_one_scale_a_row_are_exact(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, case: Case
) -> None:
    """A one in each row of activations gives a column of weights: no bit of the file is lost but in sums."""
    matrix = random_groups(rng, case.grouping, 64)
    groups = matrix.read(0, 64)
    scale = np.repeat(groups.scale[:, :1], groups.scale.shape[1], axis=1)
    minimum = None if groups.minimum is None else -3 * scale  # a zero point of 3
    matrix = in_memory(replace(groups, scale=scale, minimum=minimum), case.grouping)
    result = Packer(kernels, team, "auto", packed).matrix((matrix,))
    out, multiplied = product(kernels, team, result, np.eye(COLUMNS, dtype=np.float32))
    expected = exact_product(matrix, multiplied)
    if case.grouping.levels == NF4:
        np.testing.assert_allclose(out, expected, atol=0.004 * np.abs(scale).max())
    else:
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, case: Case
) -> None:
    result = Packer(kernels, team, "auto", packed).matrix((random_groups(rng, case.grouping, 48),))
    a = rng.standard_normal((70, COLUMNS), np.float32)
    together, _ = product(kernels, team, result, a)
    for start, end in ((0, 1), (1, 3), (3, 8), (8, 21), (21, 70)):
        np.testing.assert_array_equal(product(kernels, team, result, a[start:end])[0], together[start:end])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("wanted", ["f32", "bf16"])
def test_weights_become_floats_where_these_are_wanted(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, case: Case, wanted: str
) -> None:
    order = rng.permutation(COLUMNS).astype(np.int32)
    matrix = replace(random_groups(rng, case.grouping, 40), order=order)
    result = Packer(kernels, team, wanted, packed).matrix((matrix,))  # type: ignore[arg-type]
    out = np.empty((COLUMNS, result.rows), np.float32)
    eye = np.eye(COLUMNS, dtype=np.float32)
    given = bf16_bits(eye) if wanted == "bf16" and kernels.info.activation_bytes == 2 else eye
    kernels.library.octavo_linear(team, result, address(given), None, COLUMNS, address(out))
    weights = matrix.dequantize()
    expected = bf16_values(bf16_bits(weights)) if wanted == "bf16" else weights
    if reads_bf16(kernels) and wanted == "bf16":
        expected = np.where(np.abs(expected) < 2.0**-126, 0, expected)
    np.testing.assert_array_equal(out[:, :40], expected.T)


@pytest.mark.parametrize("case", [CASES[3], CASES[14], CASES[-1]], ids=str)
def test_columns_in_an_order_of_their_own(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, case: Case
) -> None:
    order = rng.permutation(COLUMNS).astype(np.int32)
    parts = [replace(random_groups(rng, case.grouping, rows), order=order) for rows in (64, 32)]
    result = Packer(kernels, team, "auto", packed).matrix(parts)
    assert result.format == abi.PACKED[case.format]
    a = rng.standard_normal((5, COLUMNS), np.float32)
    out, multiplied = product(kernels, team, result, a)
    for start, part in ((0, parts[0]), (64, parts[1])):
        error = np.abs(out[:, start : start + part.shape[0]] - exact_product(part, multiplied))
        assert (error <= slack(kernels, part, multiplied)).all()


def test_matrices_in_different_orders_become_floats(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator
) -> None:
    grouping = Grouping("int4", 128)
    first = replace(random_groups(rng, grouping, 64), order=rng.permutation(COLUMNS).astype(np.int32))
    second = random_groups(rng, grouping, 64)
    parts = packed_parts((first, second), "auto")
    assert [part.layout.format for part in parts] == ["bf16", "int4_symmetric"]
    result = Packer(kernels, team, "auto", packed).matrix((first, second))
    assert not result.order
    a = rng.standard_normal((5, COLUMNS), np.float32)
    out, _ = product(kernels, team, result, a)
    expected = np.concatenate([exact_product(m, a.astype(np.float64)) for m in (first, second)], axis=1)
    np.testing.assert_allclose(out, expected, atol=0.02 * np.abs(expected).max())


def test_parts_keep_their_formats(packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator) -> None:
    matrices: list[Matrix] = [
        random_groups(rng, Grouping("int4", 128, minimum=True), 64),
        random_groups(rng, Grouping("code4", 32, levels=IQ4_NL), 32),
        random_groups(rng, Grouping("fp8", 128), 32),
        random_blocks(rng, "q6_k", 32, COLUMNS, 1e-3),
        stored(rng.standard_normal((24, COLUMNS), np.float32) * np.float32(0.02), "bf16"),
    ]
    parts = packed_parts(matrices, "auto")
    assert [part.layout.format for part in parts] == ["int4", "code4", "fp8", "int6", "bf16"]
    bias = stored(rng.standard_normal(184, np.float32))
    result = Packer(kernels, team, "auto", packed).matrix(matrices, biases=(bias,))
    assert result.part_count == 5
    assert packed.size - matrix_bytes(matrices, "auto", 0) <= 8 * COLUMNS * 2
    # The last one is several blocks of rows, and each unpacks float8.
    for rows in (1, 5, 40, 700):
        a = rng.standard_normal((rows, COLUMNS), np.float32)
        out, _ = product(kernels, team, result, a)
        expected = np.concatenate([exact_product(m, a.astype(np.float64)) for m in matrices], axis=1) + bias.data
        for columns in np.split(np.arange(184), np.cumsum([m.shape[0] for m in matrices])[:-1]):
            np.testing.assert_allclose(
                out[:, columns], expected[:, columns], atol=0.02 * np.abs(expected[:, columns]).max()
            )


INTERLEAVED = [
    (Grouping("int4", 128), Grouping("int4", 32, minimum=True), "int4"),
    (Grouping("int4", 32), Grouping("int8", 128), "int8"),
    (Grouping("code4", 32, levels=FP4), Grouping("code4", 32, levels=IQ4_NL), "int8"),
    (Grouping("int4", 64, minimum=True), Grouping("code4", 64, levels=NF4), "int8_minimum"),
    (Grouping("int8", 128, minimum=True), Grouping("int8", 128), "int8_minimum"),
    (Grouping("int4", 128), Grouping("int4", 128), "int4_symmetric"),
    (Grouping("fp8", 128), Grouping("fp8", 128), "fp8"),
    (Grouping("fp8", 64), Grouping("fp8", COLUMNS), "fp8"),
    (Grouping("code4", 16, levels=FP4), Grouping("code4", 16, levels=FP4), "code4_16"),
]


@pytest.mark.parametrize(("first", "second", "format_"), INTERLEAVED)
def test_interleaved_matrices_share_a_format(
    packed: Packed,
    kernels: Kernels,
    team: int,
    rng: np.random.Generator,
    first: Grouping,
    second: Grouping,
    format_: abi.PackedFormat,
) -> None:
    matrices = [random_groups(rng, grouping, 80) for grouping in (first, second)]
    result = Packer(kernels, team, "auto", packed).matrix(matrices, abi.INTERLEAVED)
    assert result.format == abi.PACKED[format_]
    a = rng.standard_normal((7, COLUMNS), np.float32)
    out, multiplied = product(kernels, team, result, a)
    halves = out.reshape(7, -1, 2, kernels.info.panel // 2)
    for number, matrix in enumerate(matrices):
        got = halves[:, :, number].reshape(7, -1)[:, :80]
        assert (np.abs(got - exact_product(matrix, multiplied)) <= slack(kernels, matrix, multiplied)).all()


def test_pieces_of_a_matrix_are_packed_like_the_whole(
    kernels: Kernels, team: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = [random_groups(rng, Grouping("int4", 32, minimum=True), rows) for rows in (200, 70, 70)]
    a = rng.standard_normal((3, COLUMNS), np.float32)
    for arrangement, some in ((abi.CONCATENATED, matrices), (abi.INTERLEAVED, matrices[1:])):
        found = []
        for values_at_once in (1 << 30, 1):
            monkeypatch.setattr("octavo_inference.backends.cpu.native.packing._PIECE_VALUES", values_at_once)
            packed = Packed()
            found.append(product(kernels, team, Packer(kernels, team, "auto", packed).matrix(some, arrangement), a)[0])
        np.testing.assert_array_equal(*found)


def test_no_piece_is_the_whole_matrix(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = random_groups(rng, Grouping("int8", 128), 640)
    read: list[tuple[int, int]] = []

    def reader(start: int, end: int) -> Groups:
        read.append((start, end))
        return matrix.read(start, end)

    monkeypatch.setattr("octavo_inference.backends.cpu.native.packing._PIECE_VALUES", 128 * COLUMNS)
    Packer(kernels, team, "auto", packed).matrix((replace(matrix, read=reader),))
    assert sorted(read) == [(start, start + 128) for start in range(0, 640, 128)]


@pytest.mark.parametrize("size", [1e-35, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize(
    "grouping",
    [
        *(Grouping("int4", 128), Grouping("int8", 128), Grouping("fp8", 128), Grouping("code4", 128, levels=IQ4_NL)),
        *(Grouping("int4", 128, minimum=True), Grouping("int8", 128, minimum=True)),
    ],
    ids=lambda grouping: grouping.kind + "-minimum" * grouping.minimum,
)
def test_scales_beyond_the_range_of_half_precision(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, grouping: Grouping, size: float
) -> None:
    matrix = random_groups(rng, grouping, 32, size=size)
    result = Packer(kernels, team, "auto", packed).matrix((matrix,))
    out, multiplied = product(kernels, team, result, rng.standard_normal((3, COLUMNS), np.float32))
    expected = exact_product(matrix, multiplied)
    bound = 4e-3 if reads_bf16(kernels) else 2e-3  # tiles round weights to bf16
    assert np.linalg.norm(out - expected) <= bound * np.linalg.norm(expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("wanted", ["auto", "bf16"])
def test_scales_that_are_not_finite_are_refused(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator, bad: float, wanted: str
) -> None:
    matrix = random_groups(rng, Grouping("int4", 32), 64)
    matrix.read(0, 64).scale[40, 3] = bad
    with pytest.raises(ModelError, match=r"v of layer 3 \(test\) has numbers that are not finite in rows 0 to 63"):
        Packer(kernels, team, wanted, packed).matrix((matrix,), names=("v of layer 3",))  # type: ignore[arg-type]


def test_float8_that_is_no_number_is_refused(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator
) -> None:
    matrix = random_groups(rng, Grouping("fp8", 128), 64)
    matrix.read(0, 64).values[3, 3] = 255
    with pytest.raises(ModelError, match="not finite"):
        Packer(kernels, team, "auto", packed).matrix((matrix,))


def test_every_float8_is_exact(packed: Packed, kernels: Kernels, team: int) -> None:
    """Subnormal numbers too."""
    every = np.setdiff1d(np.arange(256), [127, 255]).astype(np.uint8)
    columns = np.resize(every, (32, 256))
    matrix = in_memory(Groups(columns, np.ones((32, 1), np.float32)), Grouping("fp8", 256))
    result = Packer(kernels, team, "auto", packed).matrix((matrix,))
    out, _ = product(kernels, team, result, np.eye(256, dtype=np.float32))
    np.testing.assert_array_equal(out[:, :32], matrix.dequantize().T)


@pytest.mark.parametrize(
    ("name", "worst"), [("fp4", 0.0), ("iq4_nl", 0.0), ("nf4", 0.004), ("bitsandbytes fp4", 0.0032)]
)
def test_levels_are_integers_of_a_unit(name: str, worst: float) -> None:
    unit, found = pieces.integer_levels(LEVELS[name])
    exact = np.array(LEVELS[name])
    assert np.abs(found * unit - exact).max() <= worst * np.abs(exact).max()


def test_rows_of_small_bytes_keep_their_minimum(rng: np.random.Generator) -> None:
    """A minimum that is shifted by 128 scales has coarser steps in fp16."""
    grouping = Grouping("int8", 32, minimum=True)
    groups = random_groups(rng, grouping, 2, 64).read(0, 2)
    groups.values[0] &= 127
    groups.values[1, 5] = 200
    found = pieces.packable_rows(groups, grouping, PanelLayout("int8_minimum"))
    assert found.minimum is not None
    assert found.scale is not None
    assert found.factor is not None
    assert groups.minimum is not None
    np.testing.assert_array_equal(found.values[0], groups.values[0])
    np.testing.assert_array_equal(found.minimum[0] * found.factor[0], groups.minimum[0])
    np.testing.assert_array_equal(found.values[1], groups.values[1] ^ 128)
    packed = found.values.view(np.int8).reshape(2, 2, 32) * found.scale[..., None] + found.minimum[..., None]
    np.testing.assert_allclose(
        packed.reshape(2, 64) * found.factor[:, None], groups.dequantize(grouping), rtol=1e-4, atol=1e-5
    )


def test_factors_follow_their_weights_in_one_allocation(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator
) -> None:
    result = Packer(kernels, team, "auto", packed).matrix((random_groups(rng, Grouping("int4", 96), 40, 96),))
    weights = packed.size - 4 * result.rows
    assert result.factor - result.data == -(-weights // 64) * 64


def test_layouts_know_their_minimum() -> None:
    assert [PanelLayout(name).minimum for name in ("int6", "int4", "int8", "f32", "bf16")] == [
        *(True, True, False, False, False)
    ]


def test_weights_without_a_format_are_named(
    packed: Packed, kernels: Kernels, team: int, rng: np.random.Generator
) -> None:
    packer = Packer(kernels, team, "auto", packed)
    for number in range(2):
        packer.matrix((random_groups(rng, Grouping("int4", 24), 32, 96),), names=(f"o of layer {number}",))
    order = rng.permutation(96).astype(np.int32)
    ordered = replace(random_groups(rng, Grouping("int4", 96), 32, 96), order=order)
    packer.matrix((ordered, random_groups(rng, Grouping("int4", 96), 32, 96)), names=("q", "k"))
    assert packed.unkept == {
        "test (int4) in groups of 24": ["o of layer 0", "o of layer 1"],
        "test (int4) in groups of 96 in an order of columns (act-order) that not all of the linear has": ["q and k"],
    }


def test_groups_that_no_format_keeps_become_floats(rng: np.random.Generator) -> None:
    assert group_layout(Grouping("int4", 24), 48) is None
    assert group_layout(Grouping("int8", 16), 64) is None
    assert group_layout(Grouping("int4", 8), 64) is None
    assert [p.layout.format for p in packed_parts((random_groups(rng, Grouping("int4", 24), 8, 48),), "auto")] == [
        "bf16"
    ]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_groupings(kernels: Kernels, team: int, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["int4", "int8", "code4", "fp8"]))
    blocks = data.draw(st.integers(1, 12))
    group = data.draw(st.sampled_from([size for size in (16, 32, 64, 96, 128, 256) if blocks * 32 % size == 0]))
    levels: tuple[float, ...] = ()
    if kind == "code4":
        levels = tuple(map(float, data.draw(st.lists(st.integers(-127, 127), min_size=16, max_size=16))))
    grouping = Grouping(kind, group, kind != "fp8" and data.draw(st.booleans()), levels)  # type: ignore[arg-type]
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    matrix = random_groups(
        rng, grouping, data.draw(st.integers(1, 70)), blocks * 32, 10.0 ** data.draw(st.integers(-9, 2))
    )
    if data.draw(st.booleans()):
        matrix = replace(matrix, order=rng.permutation(blocks * 32).astype(np.int32))
    floats = packed_parts((matrix,), "auto")[0].layout.floats
    assert floats == (group == 16 and (kind in {"int8", "fp8"} or (kind == "code4" and grouping.minimum)))
    packed = Packed()
    result = Packer(kernels, team, "auto", packed).matrix((matrix,))
    a = rng.standard_normal((data.draw(st.integers(1, 40)), blocks * 32), np.float32)
    out, multiplied = product(kernels, team, result, a)
    error = np.abs(out[:, : matrix.shape[0]] - exact_product(matrix, multiplied))
    rounding = np.abs(multiplied) @ np.abs(matrix.dequantize()).T * (2.0**-8 * floats)
    assert (error <= slack(kernels, matrix, multiplied) + rounding).all()


def test_every_format_is_tested() -> None:
    assert {case.format for case in CASES} | {"f32", "bf16", "int6"} == set(get_args(abi.PackedFormat))
