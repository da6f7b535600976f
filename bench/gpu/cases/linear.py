"""Cases of products with packed weights, and of lookup in a packed embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from bench.gpu.cases.weights import KNOWN, LAYOUTS, PUBLISHED, factors_of, weights
from octavo_inference.backends.cuda import library_products
from octavo_inference.backends.cuda.kernels.dequantize import dequantize_rows
from octavo_inference.backends.cuda.kernels.embedding import embed
from octavo_inference.backends.cuda.kernels.gemv import gemv, suits
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE, gemv_rows
from octavo_inference.backends.cuda.kernels.linear import linear
from octavo_inference.backends.cuda.kernels.quantize import quantize, quantize_groups
from octavo_inference.backends.cuda.kernels.weight_layouts import Layout, Stored
from octavo_inference.backends.cuda.linear import LIBRARY_ROWS, Linear
from octavo_inference.backends.cuda.packing import FP8_BY_ROW


@dataclass(frozen=True, slots=True)
class Product:
    """y [m, n] = x [m, k] @ weights.T of one layout; logits are float32, other outputs have the activations' type."""

    layout: str
    m: int
    n: int
    k: int
    bias: bool = False
    logits: bool = False

    def __str__(self) -> str:
        return f"{self.layout} {self.m}x{self.n}x{self.k}{' bias' * self.bias}{' logits' * self.logits}"

    @property
    def kernel(self) -> str:
        """The way that the layers choose: by a kernel, by the library, or by the library in dequantized pieces."""
        form: Stored = "dense" if self.layout == "dense" else cast("Stored", KNOWN[self.layout].form)
        if self.m <= gemv_rows(form):
            return "gemv"
        return "mm" if form == "dense" else "linear" if self.m < LIBRARY_ROWS else "pieces"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        # Columns in groups that fill no whole tile, like Qwen's 896 columns.
        fewest = LIBRARY_ROWS if self.kernel == "pieces" else 19
        layout = KNOWN[self.layout]
        m, n = place.pick(self.m, min(self.m, fewest)), place.pick(self.n, 77)
        k = place.pick(self.k, 7 * max(32, layout.group))
        made = weights(place, layout, n, k)
        matrix = made.matrix
        x, out = place.randn(m, k), place.empty(m, n, dtype=torch.float32 if self.logits else None)
        bias = place.randn(n, dtype=torch.float32) if self.bias else None
        workspace = place.empty(WORKSPACE, dtype=torch.float32)
        pieces = Linear((matrix,), (bias,), workspace)
        # In the interpreter activations and dense weights are float32.
        few = self.kernel == "gemv" and suits(x, matrix)

        def launch() -> None:
            if few:
                gemv(x, matrix, bias, out)
            elif self.kernel == "pieces":
                pieces(x, out)
            elif matrix.form == "dense":
                library_products.dense(x, matrix.values, bias, out)
            else:
                linear(x, matrix, bias, out, workspace)

        def pairs() -> list[Pair]:
            # `linear` rounds dequantized weights to the type of its operands; so does the reference.
            dense = made.dense if few else made.dense.to(place.dtype).float()
            expected = x.float() @ dense.T
            return [(out, expected if bias is None else expected + bias)]

        # With pieces the sums are rounded before a bias is added.
        roundings = 2 if self.kernel == "pieces" and self.bias else 1
        return Trial(launch, pairs, rounding(place.dtype, roundings), size_of(x, out, *matrix.planes))


@dataclass(frozen=True, slots=True)
class Product8:
    """y [m, n] = x [m, k] @ weights.T of fp8 by fp8, by the library."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        m, n, k = place.pick(self.m, 19), place.pick(self.n, 80), place.pick(self.k, 224)
        made = weights(place, FP8_BY_ROW, n, k)
        x, scales = planes_of_rows(place, m, k)
        out = place.empty(m, n)
        given = (x, scales, made.matrix.values, factors_of(made.matrix))

        def pairs() -> list[Pair]:
            return [(out, x.view(torch.float8_e4m3fn).float() * scales[:, None] @ made.dense.T)]

        return Trial(
            lambda: library_products.fp8(*given, None, out),
            pairs,
            rounding(place.dtype, 1),
            size_of(x, out, made.matrix.values),
        )


@dataclass(frozen=True, slots=True)
class ProductGroups:
    """y [m, n] = x [m, k] @ weights.T of fp8 by fp8 in groups of 128 columns, by the library."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        m, n, k = place.pick(self.m, 132), place.pick(self.n, 80), place.pick(self.k, 256)
        made = weights(place, Layout("fp8", library_products.GROUP), n, k)
        x, out = place.randn(m, k), place.empty(m, n)
        values = place.empty(m, k, dtype=torch.uint8)
        layer = Linear((made.matrix,), (None,), place.empty(WORKSPACE, dtype=torch.float32), values.view(-1))

        def pairs() -> list[Pair]:
            rows = x.float().view(-1, library_products.GROUP)
            scales = rows.abs().amax(dim=1, keepdim=True) / 448
            given = values.view(torch.float8_e4m3fn).float().view(rows.shape) * scales
            return [(out, given.view(m, k) @ made.dense.T)]

        return Trial(lambda: layer(x, out), pairs, rounding(place.dtype, 1), size_of(x, out, made.matrix.values))


def planes_of_rows(place: Place, m: int, k: int) -> tuple[Tensor, Tensor]:
    """Random activations [m, k] as bits of float8_e4m3fn, and their scales [m]."""
    x = (place.randn(m, k, dtype=torch.float32) * 100).to(torch.float8_e4m3fn)
    return x.view(torch.uint8), (0.5 + torch.rand(m, device=place.device)) / 100


def quantized(place: Place, m: int, k: int) -> Trial:
    """Rows of activations to fp8."""
    m, k = place.pick(m, 19), place.pick(k, 224)
    x, eight, scales = place.randn(m, k), place.empty(m, k, dtype=torch.uint8), place.empty(m, dtype=torch.float32)

    def pairs() -> list[Pair]:
        wide = x.float()
        expected_scales = wide.abs().amax(dim=1) / 448
        rounded = (wide / expected_scales[:, None]).to(torch.float8_e4m3fn).float()
        found = eight.view(torch.float8_e4m3fn).float()
        # A GPU divides to within one unit in the last place: a value between two codes may round to the other one.
        return [(scales, expected_scales), (found, torch.where(near(found, rounded), found, rounded))]

    return Trial(lambda: quantize(x, eight, scales), pairs, 1e-6, size_of(x, eight))


def quantized_groups(place: Place, m: int, k: int) -> Trial:
    """Groups of columns of activations to fp8."""
    group = library_products.GROUP
    m, k = place.pick(m, 19), place.pick(k, 3 * group)
    x, eight = place.randn(m, k), place.empty(m, k, dtype=torch.uint8)
    scales = place.empty(k // group, m, dtype=torch.float32)

    def pairs() -> list[Pair]:
        wide = x.float().view(m, -1, group)
        expected_scales = wide.abs().amax(dim=2) / 448
        rounded = (wide / expected_scales[..., None]).to(torch.float8_e4m3fn).float().view(m, k)
        found = eight.view(torch.float8_e4m3fn).float()
        return [(scales, expected_scales.t()), (found, torch.where(near(found, rounded), found, rounded))]

    return Trial(lambda: quantize_groups(x, eight, scales, group), pairs, 1e-6, size_of(x, eight))


def near(found: Tensor, expected: Tensor) -> Tensor:
    """True where values are equal or neighbouring codes of float8_e4m3fn."""
    return (found - expected).abs() <= torch.maximum(expected.abs() / 8, torch.full_like(expected, 2**-9))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Embedding lookup by token."""

    layout: str
    vocab: int
    hidden: int
    learned: bool = False
    """Positions have rows of their own, which are added."""

    def __str__(self) -> str:
        return f"{self.layout} {self.vocab}x{self.hidden}{' learned positions' * self.learned}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        tokens, vocab, layout = place.pick(2048, 5), place.pick(self.vocab, 50), KNOWN[self.layout]
        made = weights(place, layout, vocab, place.pick(self.hidden, 7 * max(32, layout.group)))
        ids = torch.randint(0, vocab, (tokens,), device=place.device, dtype=torch.int32)
        out = place.empty(tokens, made.matrix.cols, dtype=torch.float32)
        read = size_of(made.matrix.values) * tokens // vocab
        places = torch.randint(0, 7, (tokens,), device=place.device, dtype=torch.int32)
        table = place.randn(7, made.matrix.cols)
        how = {"positions": places, "learned": table} if self.learned else {}
        more = table[places.long()].float() if self.learned else 0.0
        return Trial(
            lambda: embed(ids, made.matrix, out, factor=1.5, **how),
            lambda: [(out, made.dense[ids.long()] * 1.5 + more)],
            1e-6,
            read + size_of(out),
        )


@dataclass(frozen=True, slots=True)
class Dequantized:
    """Rows of a packed matrix, written in the activations' type."""

    layout: str
    rows: int
    cols: int

    def __str__(self) -> str:
        return f"{self.layout} {self.rows}x{self.cols}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial, for `Case`."""
        layout = KNOWN[self.layout]
        rows, cols = place.pick(self.rows, 7), place.pick(self.cols, 7 * max(32, layout.group))
        made, out = weights(place, layout, rows, cols), place.empty(rows, cols)
        return Trial(
            lambda: dequantize_rows(made.matrix, out),
            lambda: [(out, made.dense)],
            rounding(place.dtype, 0.5),
            size_of(out, *made.matrix.planes),
        )


# Llama 3.1 8B's matrices: q, k and v; o; gate and up; down; and the head.
SIZES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
PACKED = [name for name in LAYOUTS if name != "dense"]
PRODUCTS = [
    *(Product(layout, m, *SIZES["gate_up"]) for layout in PACKED for m in (1, 2, 16, 32, 512)),
    *(Product(layout, 1, *SIZES["down"]) for layout in LAYOUTS),
    *(Product(layout, m, *SIZES["qkv"]) for layout in PUBLISHED for m in (1, 16, 64, 512)),
    *(Product(layout, 128, *SIZES["qkv"]) for layout in ("int4 awq", "code4 nf4", "fp8 blocks")),
    *(Product(layout, m, 576, 1536, bias=True) for layout in PUBLISHED for m in (2, 17)),
    *(Product(layout, m, *SIZES["qkv"], bias=True) for layout in ("int4 q4_k", "fp8") for m in (4, 64, 512)),
    *(Product(layout, m, 128_256, 4096, logits=True) for layout in ("dense", "int8 q6_k", "fp8") for m in (1, 64)),
    *(Product("int4 q4_0", m, 1152, 896, bias=True) for m in (1, 3)),
    Product("int8 q8_0", 17, 576, 1536),
]
LOOKUPS = [
    *(Lookup(layout, 128_256, 4096) for layout in ("dense", "int4 q4_k", "int8 q6_k", "fp8")),
    *(Lookup(layout, 32_000, 4096) for layout in PUBLISHED),
    Lookup("int8 q8_0", 49_152, 576),
    Lookup("dense", 50_257, 768, learned=True),
]
DEQUANTIZED = [Dequantized(layout, 2048, 4096) for layout in (*PACKED, *PUBLISHED)]
QUICK = {
    str(LOOKUPS[-1]),
    *(
        f"{layout} {m}x6144x4096"
        for layout in ("int4 awq", "code4 nf4", "fp4 nvfp4", "fp8 blocks")
        for m in (1, 16, 64)
    ),
    *(f"{layout} 2048x4096" for layout in ("int4 awq", "code4 nf4", "fp8 blocks")),
    *(f"{layout} 128x6144x4096" for layout in ("int4 awq", "code4 nf4", "fp8 blocks")),
    "fp4 nvfp4 32000x4096",
    "int4 q4_k 512x6144x4096 bias",
    "int4 q4_k 2048x4096",
    "int8 q6_k 2048x4096",
    "int4 q4_k 1x28672x4096",
    "int8 q6_k 2x28672x4096",
    "fp8 1x28672x4096",
    "dense 1x128256x4096 logits",
    "int4 q4_k 16x28672x4096",
    "int4 q4_k 512x28672x4096",
    "int8 q6_k 32x28672x4096",
    "fp8 64x6144x4096 bias",
    "fp8 512x28672x4096",
    "dense 64x128256x4096 logits",
    "int8 q6_k 128256x4096",
}
PRODUCTS8 = [Product8(m, *SIZES[name]) for name in ("gate_up", "down") for m in (128, 512)]
GROUPS8 = [ProductGroups(m, *SIZES[name]) for name in ("gate_up", "down") for m in (132, 512)]
CASES = [
    *(
        Case("scaled_mm", f"groups {shape}", shape.prepare, groups8=True, library=True, quick=shape == GROUPS8[0])
        for shape in GROUPS8
    ),
    *(
        Case("scaled_mm", str(shape), shape.prepare, float8=True, library=True, quick=shape == PRODUCTS8[0])
        for shape in PRODUCTS8
    ),
    Case("quantize", "groups 512x14336", lambda place: quantized_groups(place, 512, 14336), quick=True),
    Case("quantize", "512x14336", lambda place: quantized(place, 512, 14336), quick=True),
    *(
        Case(shape.kernel, str(shape), shape.prepare, library=shape.kernel == "mm", quick=str(shape) in QUICK)
        for shape in PRODUCTS
    ),
    *(Case("dequantize", str(shape), shape.prepare, quick=str(shape) in QUICK) for shape in DEQUANTIZED),
    *(Case("embed", str(shape), shape.prepare, quick=str(shape) in QUICK) for shape in LOOKUPS),
]
