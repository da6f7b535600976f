"""Formats of groups for `bench.cpu.formats`: weights rounded to nearest, as published checkpoints store them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_inference.models.groups import Floats, GroupedMatrix, Grouping, Groups, common_group, e4m3_levels

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_IQ4_NL = (-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
_ROW = 0  # a group is a row
GROUPINGS: dict[str, Grouping] = {
    **{f"int4 g{group}": Grouping("int4", group) for group in (32, 64, 128)},
    **{f"int4 zero g{group}": Grouping("int4", group, minimum=True) for group in (16, 32, 64, 128)},
    "iq4_nl": Grouping("code4", 32, levels=_IQ4_NL),
    "mxfp4": Grouping("code4", 32, levels=_E2M1),
    "nvfp4": Grouping("code4", 16, levels=_E2M1),
    "nf4": Grouping("code4", 64, levels=_NF4),
    "int8 rows": Grouping("int8", _ROW),
    "int8 zero g128": Grouping("int8", 128, minimum=True),
    "fp8 rows": Grouping("fp8", _ROW),
    "fp8 g128": Grouping("fp8", 128),
}


def rounded(name: str, values: Floats) -> GroupedMatrix:
    """A matrix [rows, columns] in a format of `GROUPINGS`, in smaller groups where these do not divide the columns."""
    rows, columns = values.shape
    grouping = GROUPINGS[name]
    grouping = replace(grouping, group=common_group(columns, grouping.group or columns))
    groups = _nearest(grouping, values.reshape(rows, -1, grouping.group))
    return GroupedMatrix(name, (rows, columns), grouping, groups.rows)


def _nearest(grouping: Grouping, values: Floats) -> Groups:
    """Round groups [rows, groups, columns of a group]; the largest of each is kept."""
    rows = len(values)
    levels = _levels(grouping)
    if grouping.minimum:
        low, high = values.min(-1), values.max(-1)
        scale = np.maximum((high - low) / levels.max(), np.float32(1e-20))
        codes = np.rint((values - low[..., None]) / scale[..., None]).astype(np.uint8)
        return Groups(codes.reshape(rows, -1), scale, low)
    scale = np.maximum(np.abs(values).max(-1) / levels.max(), np.float32(1e-20))
    order = np.argsort(levels)
    between = (levels[order][1:] + levels[order][:-1]) / 2
    codes = order[np.searchsorted(between, values / scale[..., None])].astype(np.uint8)
    return Groups(codes.reshape(rows, -1), scale, None)


def _levels(grouping: Grouping) -> Floats:
    """The level of each value; of those of float8 that are no numbers, 0."""
    if grouping.kind == "fp8":
        return np.nan_to_num(e4m3_levels(), nan=0.0)
    if grouping.kind == "code4":
        return np.array(grouping.levels, np.float32)
    return np.arange(16 if grouping.kind == "int4" else 256, dtype=np.float32) - np.float32(grouping.zero)
