"""Products with packed weights, and rows of packed tables, against the dequantised weights in float64."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE, LinearTile, linear_tile
from octavo_inference.backends.cuda.kernels.linear import linear
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Stored
from octavo_inference.backends.cuda.linear import LIBRARY_ROWS, Embedding, Linear, quantize_rows
from octavo_inference.backends.cuda.packing import FP8_BY_ROW, layout_of, pack
from octavo_inference.models.weights import Format, Tensor, dequantize

from .stored import BLOCKS, FORMATS, stored

K_FORMATS = {"q4_k", "q5_k", "q6_k"}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def workspace() -> Torch:
    return torch.full((WORKSPACE,), float("nan"))


def on_device(tensor: Tensor) -> DeviceMatrix:
    layout = layout_of(tensor, "bf16" if tensor.format == "bf16" else "f32", "auto")
    planes = {name: torch.from_numpy(np.array(plane)) for name, plane in pack(tensor, layout).items()}
    if layout.form == "bf16":
        planes["values"] = planes["values"].view(torch.bfloat16)
    for name in planes.keys() - {"values"}:
        planes[name] = before_nothing(planes[name])
    return DeviceMatrix(layout, tensor.shape[1], **planes)


def before_nothing(scales: Torch) -> Torch:
    """The same with NaN behind it, which no product survives."""
    buffer = torch.full((scales.numel() + 64,), float("nan"), dtype=scales.dtype)
    buffer[: scales.numel()] = scales.reshape(-1)
    return buffer[: scales.numel()].view(scales.shape)


def floats(matrix: DeviceMatrix) -> NDArray[np.float64]:
    """What the planes of int4 and int8 mean."""
    layout, cols = matrix.layout, matrix.cols
    values = matrix.values.numpy()
    if layout.form == "int4":
        halves = values.reshape(len(values), -1, layout.group // 2)
        values = np.concatenate([halves & 15, halves >> 4], axis=2).reshape(len(values), cols)
    scales = np.repeat(matrix.scales.numpy().astype(np.float64), layout.group, axis=1)
    result = (values.astype(np.float64) - layout.zero) * scales
    if matrix.minimums is not None:
        result += np.repeat(matrix.minimums.numpy().astype(np.float64), layout.group, axis=1)
    return result


def tolerance(x: Torch, weights: NDArray[np.float32], relative: float) -> NDArray[np.float64]:
    """`relative` of the sum of all terms' magnitudes, so that terms that cancel each other ask for no more."""
    return relative * (np.abs(x.double().numpy()) @ np.abs(weights.astype(np.float64)).T) + 1e-30


def compare(out: Torch, expected: NDArray[Any], bound: NDArray[np.float64]) -> float:
    error = np.abs(out.double().numpy() - expected)
    assert (error <= bound).all(), f"{(error / bound).max():.1f} times the bound"
    return float(error.max() / np.abs(expected).max())


@pytest.mark.parametrize("format_", [f for f in FORMATS if f.startswith("q")])
def test_planes_hold_what_the_file_says(rng: np.random.Generator, format_: Format) -> None:
    tensor = stored(rng, format_, 9, 512 if format_ in K_FORMATS else 288)
    exact = dequantize(tensor)
    error = np.abs(floats(on_device(tensor)) - exact)
    if format_ in K_FORMATS:
        # fp16 keeps 11 bits of scale and minimum, which cancel each other in part.
        assert error.max() <= 2**-10 * np.abs(exact).max()
        assert error.max() > 0
    else:
        assert not error.any()


# Rows, outputs, columns: no size but 128 is a multiple of its tile. 896 and 576 are no multiples of 256.
SHAPES = [(1, 70, 512), (3, 33, 1536), (17, 130, 256), (33, 33, 512)]
MORE = [(1, 33, 576), (3, 130, 896), (17, 70, 96), (33, 33, 576), (65, 70, 96)]


@pytest.mark.parametrize(
    ("format_", "m", "n", "k"),
    [(f, *SHAPES[(i + j) % 4]) for i, f in enumerate(BLOCKS) for j in (0, 2)]
    + [(f, *MORE[(2 * i + j) % 5]) for i, f in enumerate(["q4_0", "q4_1", "q5_1", "q8_0"]) for j in (0, 1)],
)
def test_linear(
    rng: np.random.Generator, workspace: Torch, record: Any, format_: Format, m: int, n: int, k: int
) -> None:
    tensor = stored(rng, format_, n, k)
    matrix = on_device(tensor)
    x = torch.from_numpy(rng.standard_normal((m, k), np.float32))
    bias = torch.from_numpy(rng.standard_normal(n, np.float32)) if m % 2 else None
    wide = torch.full((m + 2, n + 8), float("nan"))
    run(x, matrix, bias, wide[:m, 3 : n + 3], workspace)
    assert wide[m:].isnan().all()
    assert wide[:, :3].isnan().all()
    assert wide[:, n + 3 :].isnan().all()
    weights = dequantize(tensor)
    expected = x.double().numpy() @ weights.T.astype(np.float64) + (0 if bias is None else bias.double().numpy())
    # float32 sums; in k formats the rounding of scales to fp16.
    bound = tolerance(x, weights, 2**-10 if format_ in K_FORMATS else 2e-6) + 1e-6
    error = compare(wide[:m, 3 : n + 3], expected, bound)
    record(f"linear {format_}", (m, n, k), "float32", error)


def run(
    x: Torch, matrix: DeviceMatrix, bias: Torch | None, out: Torch, workspace: Torch, tile: LinearTile | None = None
) -> None:
    linear(x, matrix, bias, out, workspace, tile=tile)


@pytest.mark.parametrize("form", ["q4_k", "q8_0", "fp8"])
def test_sums_cut_in_parts_are_added_up_in_order(rng: np.random.Generator, workspace: Torch, form: str) -> None:
    if form == "fp8":
        values, scales = quantize_rows(torch.from_numpy(rng.standard_normal((40, 512), np.float32)))
        matrix = DeviceMatrix(FP8_BY_ROW, 512, values, factors=scales)
    else:
        matrix = on_device(stored(rng, cast("Format", form), 40, 512))
    x = torch.from_numpy(rng.standard_normal((5, 512), np.float32))
    bias = torch.from_numpy(rng.standard_normal(40, np.float32))
    outs = []
    # 8 or 16 steps in 7 parts of 2 or 3: the last parts have less to add, or nothing.
    for split in (1, 7, 7):
        outs.append(torch.empty(5, 40))
        run(x, matrix, bias, outs[-1], workspace, LinearTile(16, 64, 32, split, 4, 1))
    assert torch.equal(outs[1], outs[2])
    assert not torch.equal(outs[0], outs[1])
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["int4", "int8", "fp8"])
def test_few_rows_are_cut_and_many_are_not(form: Stored, dtype: torch.dtype) -> None:
    assert linear_tile(form, 1, 4096, 2048, dtype).split >= 2
    assert linear_tile(form, 64, 1024, 4096, dtype).split == 16
    assert linear_tile(form, 129, 64, 4096, dtype).split == 1
    assert linear_tile(form, 1, 128256, 4096, dtype).split == 1
    for m in (1, 16, 17, 32, 33, 64, 128, 1000):
        for n in (1, 64, 576, 1000, 4096, 28672):
            for width in (32, 576, 2048, 14336):
                split = linear_tile(form, m, n, width, dtype).split
                assert split == 1 or split * m * n <= WORKSPACE


@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 576), (3, 70, 896), (33, 65, 96)])
def test_linear_fp8(rng: np.random.Generator, workspace: Torch, record: Any, m: int, n: int, k: int) -> None:
    dense = torch.from_numpy(rng.standard_normal((n, k), np.float32)) * torch.logspace(-6, 3, n)[:, None]
    dense[5] = 0
    values, scales = quantize_rows(dense)
    matrix = DeviceMatrix(FP8_BY_ROW, k, values, factors=scales)
    stored_values = values.view(torch.float8_e4m3fn).float() * scales[:, None]
    # Three bits of mantissa: half a step is a sixteenth; below 2**-6 of 448, steps are 2**-9.
    assert ((stored_values - dense).abs() <= dense.abs() / 16 + scales[:, None] * 2**-10).all()
    assert not stored_values[5].any()
    x, bias = torch.from_numpy(rng.standard_normal((m, k), np.float32)), torch.ones(n)
    out = torch.empty(m, n)
    run(x, matrix, bias, out, workspace)
    expected = x.double().numpy() @ stored_values.double().numpy().T + 1
    error = compare(out, expected, tolerance(x, stored_values.numpy(), 2e-6) + 1e-6)
    record("linear fp8", (m, n, k), "float32", error)


@pytest.mark.parametrize(
    ("format_", "dtype", "m"),
    [
        ("q4_1", torch.bfloat16, 70),
        ("q6_k", torch.float16, 33),
        ("q8_0", torch.bfloat16, 17),
        ("q4_k", torch.float16, 3),
    ],
)
def test_linear_of_short_floats(
    rng: np.random.Generator, workspace: Torch, record: Any, format_: Format, dtype: torch.dtype, m: int
) -> None:
    tensor = stored(rng, format_, 40, 256)
    x = torch.from_numpy(rng.standard_normal((m, 256), np.float32)).to(dtype)
    out = torch.empty((m, 40), dtype=dtype)
    run(x, on_device(tensor), None, out, workspace)
    weights = dequantize(tensor)
    expected = x.double().numpy() @ weights.T.astype(np.float64)
    # The sum is rounded to the type, on a GPU the weights as well; in k formats the scales to fp16.
    unit = torch.finfo(dtype).eps
    error = compare(out, expected, tolerance(x, weights, 2**-10) + unit * np.abs(expected))
    record(f"linear {format_}", (m, 40, 256), dtype, error)


def test_a_row_does_not_depend_on_its_neighbours(rng: np.random.Generator, workspace: Torch) -> None:
    matrix = on_device(stored(rng, "q4_k", 40, 256))
    x = torch.from_numpy(rng.standard_normal((16, 256), np.float32))
    others, together = torch.empty(16, 40), torch.empty(16, 40)
    run(x, matrix, None, together, workspace)
    run(torch.where(torch.arange(16)[:, None] == 7, x, -x), matrix, None, others, workspace)
    assert torch.equal(others[7], together[7])


def test_parts_of_different_layouts_stand_side_by_side(rng: np.random.Generator, workspace: Torch) -> None:
    tensors = [stored(rng, f, n, 256) for f, n in (("q4_k", 48), ("q6_k", 20), ("f32", 12))]
    biases = [torch.from_numpy(rng.standard_normal(t.shape[0], np.float32)) for t in tensors]
    layer = Linear(tuple(map(on_device, tensors)), tuple(biases), workspace)
    x = torch.from_numpy(rng.standard_normal((5, 256), np.float32))
    weights = np.concatenate([dequantize(t) for t in tensors])
    expected = x.double().numpy() @ weights.T.astype(np.float64) + torch.cat(biases).double().numpy()
    compare(layer(x), expected, tolerance(x, weights, 2**-10) + 1e-6)
    out = torch.empty(5, 80)
    assert layer(x, out) is out
    assert torch.equal(out, layer(x))
    assert layer(x[:0]).shape == (0, 80)


@pytest.mark.parametrize("format_", ["q4_0", "q4_k", "q6_k", "q8_0", "fp8"])
def test_many_rows_are_multiplied_in_pieces_of_dequantized_weights(rng: np.random.Generator, format_: str) -> None:
    """Pieces of 16 rows of weights, the last one of fewer, with a bias, into rows at a stride."""
    n, k = 56, 256
    if format_ == "fp8":
        values, scales = quantize_rows(torch.from_numpy(rng.standard_normal((n, k), np.float32)))
        matrix = DeviceMatrix(FP8_BY_ROW, k, values, factors=scales)
        weights = (values.view(torch.float8_e4m3fn).float() * scales[:, None]).numpy()
    else:
        tensor = stored(rng, cast("Format", format_), n, k)
        matrix, weights = on_device(tensor), dequantize(tensor)
    bias = torch.from_numpy(rng.standard_normal(n, np.float32))
    layer = Linear((matrix,), (bias,), torch.full((20 * k,), float("nan")))
    x = torch.from_numpy(rng.standard_normal((LIBRARY_ROWS, k), np.float32))
    wide = torch.full((LIBRARY_ROWS, n + 8), float("nan"))
    layer(x, wide[:, 3 : n + 3])
    expected = x.double().numpy() @ weights.T.astype(np.float64) + bias.double().numpy()
    compare(wide[:, 3 : n + 3], expected, tolerance(x, weights, 2**-10) + 1e-6)
    assert wide[:, :3].isnan().all()
    assert wide[:, n + 3 :].isnan().all()


def test_logits_of_bfloat16_weights_are_float32(rng: np.random.Generator, workspace: Torch) -> None:
    tensor = stored(rng, "bf16", 50, 96)
    head = Linear((on_device(tensor),), (None,), workspace)
    x = torch.from_numpy(rng.standard_normal((3, 96), np.float32)).to(torch.bfloat16)
    logits = head(x, torch.empty((3, 50), dtype=torch.float32))
    expected = x.double().numpy() @ dequantize(tensor).T.astype(np.float64)
    compare(logits, expected, tolerance(x, dequantize(tensor), 2e-6))
    assert head(x).dtype is torch.bfloat16
    compare(head(x), expected, np.abs(expected) * 2**-7 + 1e-3)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("tokens_type", [torch.int32, torch.int64])
def test_embedding(rng: np.random.Generator, record: Any, format_: Format, tokens_type: torch.dtype) -> None:
    # More than one program wide for int32, an odd number of groups for int64.
    cols = 1280 if tokens_type is torch.int32 else 256 if format_ in K_FORMATS else 96
    tensor = stored(rng, format_, 11, cols)
    tokens = torch.tensor([10, 0, 3, 3], dtype=tokens_type)
    out = torch.full((4, cols), float("nan"))
    assert Embedding(on_device(tensor))(tokens, out, scale=3.0) is out
    expected = 3.0 * dequantize(tensor)[tokens.numpy()]
    bound = 2**-10 * np.abs(expected).max() if format_ in K_FORMATS else 1e-6 * np.abs(expected)
    error = compare(out, expected, np.broadcast_to(bound, expected.shape) + 1e-12)
    record(f"embed {format_}", (4, 11, cols), "float32", error)


def test_every_byte_of_fp8_means_what_torch_says() -> None:
    table = DeviceMatrix(
        FP8_BY_ROW, 256, torch.arange(256, dtype=torch.uint8).repeat(2, 1), factors=torch.tensor([1.0, 0.5])
    )
    rows = Embedding(table)(torch.tensor([0, 1]))
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = ~expected.isnan()
    assert numbers.sum() == 254
    assert torch.equal(rows[0][numbers], expected[numbers])
    assert torch.equal(rows[1][numbers], expected[numbers] / 2)
