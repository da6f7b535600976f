"""Random matrices in the kinds of published formats."""

from __future__ import annotations

import numpy as np

from bench.gpu.cases.weights import NF4
from octavo_inference.backends.cuda.packing import E2M1
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups

GROUPINGS: dict[str, Grouping] = {
    "gptq": Grouping("int4", 128),
    "awq": Grouping("int4", 128, minimum=True),
    "hqq": Grouping("int4", 64, minimum=True),
    "int4 of 32": Grouping("int4", 32),
    "int4 of 16": Grouping("int4", 16),
    "int4 of 16, minimum": Grouping("int4", 16, minimum=True),
    "int4 of 96": Grouping("int4", 96, minimum=True),
    "int8 of 128": Grouping("int8", 128),
    "int8 of 64, minimum": Grouping("int8", 64, minimum=True),
    "int8 of 16": Grouping("int8", 16),
    "a table, minimum": Grouping("code4", 16, minimum=True, levels=tuple(float(i * i - 60) for i in range(16))),
    "nf4": Grouping("code4", 64, levels=tuple(np.float16(NF4).tolist())),
    "mxfp4": Grouping("code4", 32, levels=tuple(2 * level for level in E2M1)),
    "nvfp4": Grouping("code4", 16, levels=E2M1),
    "fp8 blocks": Grouping("fp8", 128),
    "mxfp8": Grouping("fp8", 32),
}


def grouped(
    rng: np.random.Generator, grouping: Grouping, rows: int, cols: int, *, size: float = 0.01, ordered: bool = False
) -> GroupedMatrix:
    """A matrix with every value, scales of either sign of about `size`, some of its columns in another order."""
    high = 256 if grouping.kind in {"int8", "fp8"} else 16
    values = rng.integers(0, high, (rows, cols), dtype=np.uint8)
    if grouping.kind == "fp8":
        values[values & 127 == 127] = 0  # no NaN
    # Rounded to fp16 times a power of two, which the planes of all kinds keep exactly.
    exponent = np.float32(2.0 ** np.round(np.log2(size)))
    scale = rng.standard_normal((rows, cols // grouping.group)).astype(np.float16).astype(np.float32) * exponent
    minimum = None
    if grouping.minimum:
        minimum = (rng.standard_normal(scale.shape) * 4).astype(np.float16).astype(np.float32) * exponent
    groups = Groups(values, scale, minimum)
    order = rng.permutation(cols).astype(np.int32) if ordered else None
    return GroupedMatrix("a format", (rows, cols), grouping, groups.rows, (values, scale), order)
