"""Times of the products of experts by each tile that may be the best, and by either kernel: microseconds, L2 empty.

Beside them stand the microseconds in which a copy moves the matrices of as many different experts as are chosen on
average. `expert_configs` is written by hand from these rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from bench.gpu.cases.experts import GPT_OSS, QWEN3_30B, Products
from bench.gpu.cases.weights import KNOWN
from bench.gpu.experiments.setting import Setting
from bench.gpu.experiments.tiles import REPEATS, best_of, tried_by
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, expert_gemv_tile, expert_tile
from octavo_inference.backends.cuda.kernels.launch_configs import GemvTile, LinearTile
from octavo_inference.backends.cuda.kernels.weight_layouts import Stored

SHAPES = (
    *((layout, QWEN3_30B) for layout in ("dense", "fp8", "int4 q4_0", "int4 q4_k")),
    ("fp4 mxfp4", GPT_OSS),
)
TOKENS = (1, 4, 8, 16, 64, 256, 512, 2048)
MOST_FEW = 16
"""Tokens up to which the kernel for few of them is tried."""
GEMV = tuple(GemvTile(outputs, warps) for outputs, warps in itertools.product((2, 4, 8), (1, 2, 4)))
# Rows of weights, columns of an iteration, warps, stages.
LINEAR = {
    16: ((64, 128, 4, 3), (64, 64, 4, 4), (128, 64, 4, 3), (32, 128, 4, 3), (128, 128, 4, 3)),
    32: ((64, 128, 4, 3), (128, 64, 4, 3), (64, 64, 4, 4)),
    64: ((128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 4)),
    128: ((128, 64, 8, 3), (256, 32, 8, 3), (128, 64, 8, 4), (256, 64, 8, 3)),
}


def items(setting: Setting) -> Iterator[Item]:
    """Both products of each mixture, by numbers of tokens."""
    flush = Flush(setting.device)
    for layout, mixture in setting.pick(SHAPES, SHAPES[:1]):
        for down in (False, True):
            for tokens in setting.pick(TOKENS, (2,)):
                shape = Products(layout, mixture, tokens, down)
                yield Item(str(shape), partial(run, setting, flush, shape))


def run(setting: Setting, flush: Flush, shape: Products) -> Row:
    """Time all candidates."""
    place = setting.place
    made = setting.keep.get((shape.layout, shape.mixture.name, shape.down), lambda: shape.matrices(place))

    def times(tile: GemvTile | LinearTile) -> dict[int, float]:
        launch = replace(shape, tile=tile).prepare(place, made).launch
        return {shape.tokens: 1e6 * measured(setting.timer, launch, setting.pick(REPEATS, 1), flush)}

    count, chosen = shape.mixture.count, shape.mixture.chosen
    used = count * (1 - (1 - chosen / count) ** shape.tokens)
    size = sum(plane.nbytes for plane in made.matrix.planes)
    row: Row = {"layout": shape.layout, "tokens": shape.tokens, "down": shape.down, "mixture": shape.mixture.name}
    row |= {"floor_us": 1e6 * size * used / count / setting.peaks.bandwidth}
    return row | best_of(tried_by(candidates(setting, shape), times))


def candidates(setting: Setting, shape: Products) -> Sequence[GemvTile | LinearTile]:
    """First what the layers would launch, then the others of the same kernel, then those of the other."""
    form: Stored = "dense" if shape.layout == "dense" else cast("Stored", KNOWN[shape.layout].form)
    count, _, units, k = shape.sizes(setting.place)
    rows = block_rows(shape.tokens * shape.mixture.chosen, count, setting.place.dtype)
    width = k * {"dense": 2.0, "int4": 0.5, "code4": 0.5, "fp4": 0.5}.get(form, 1.0)
    narrow = [expert_gemv_tile(form, units, int(width)), *GEMV]
    wide = [
        expert_tile(form, rows, setting.place.dtype),
        *(LinearTile(rows, n, step, 1, *more) for n, step, *more in LINEAR[rows]),
    ]
    if setting.interpret:
        return narrow[:1]
    if shape.tokens > MOST_FEW:
        return wide
    return [*narrow, *wide] if shape.few else [*wide, *narrow]
