"""GPTQ checkpoints (`quant_method` gptq, also AutoRound's with that packing): 2, 3, 4 and 8 bits, with act-order.

    qweight  int32    [columns * bits / 32, rows]   values, packed along the columns
    qzeros   int32    [groups, rows * bits / 32]    zero points, packed along the rows
    scales   float16  [groups, rows]
    g_idx    int32    [columns]                     the group of each column, may be missing

    weight = (value - zero) * scale

The layout is that of AutoGPTQ and GPTQModel. In `checkpoint_format` gptq zero points are stored minus 1, in gptq_v2 as
they are. With `sym` they are all in the middle of the range. With `desc_act` ("act-order") a group's columns are apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.bits import unpack_words
from octavo_inference.checkpoints.quantized.patterns import compiled
from octavo_inference.checkpoints.quantized.settings import flag, group_size, mapping, setting, strings
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.common.errors import ModelError
from octavo_inference.common.memory_advice import release
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups, common_group

_BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """How a module is quantized. `group` is None where all columns share a scale."""

    bits: int
    group: int | None
    symmetric: bool
    act_order: bool


def reader(source: Source) -> QuantizedReader:
    """Reads the modules that have a `qweight`. Raises `ModelError` and `UnsupportedModelError` for bad settings."""
    given = source.settings
    version = given.get("checkpoint_format", given.get("format", "gptq"))
    stored_minus_one = setting(source, "checkpoint_format", version, ("gptq", "gptq_v2")) == "gptq"
    setting(source, "pack_dtype", given.get("pack_dtype", "int32"), ("int32",))
    return packed_reader(source, _rules(source), stored_minus_one=stored_minus_one)


def packed_reader(
    source: Source, scheme_of: Callable[[str], GptqScheme | None], *, stored_minus_one: bool
) -> QuantizedReader:
    """Reads modules in GPTQ's layout; `scheme_of` tells of each how, None for one that is not quantized."""

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        if source.find(module + ".qweight") is None:
            return None
        scheme = scheme_of(module)
        if scheme is None:
            raise ModelError(
                f"{source.config}: quantization_config says that {module} is not quantized, "
                f"the weights have {module}.qweight"
            )
        return _matrix(source, module, rows, columns, scheme, stored_minus_one)

    return matrix


def scheme_from(source: Source, given: Mapping[str, Any], base: GptqScheme | None, place: str = "") -> GptqScheme:
    """A module's scheme from settings, those of `base` for missing ones. `place` is where they are, for messages."""
    sizes = (base.bits, -1 if base.group is None else base.group, base.symmetric, base.act_order) if base else ()
    bits, group, symmetric, act_order = sizes or (None, None, True, False)
    return GptqScheme(
        setting(source, place + "bits", given.get("bits", bits), _BITS),
        group_size(source, place + "group_size", given.get("group_size", group)),
        flag(source, place + "sym", given.get("sym", symmetric)),
        flag(source, place + "desc_act", given.get("desc_act", act_order)),
    )


def _rules(source: Source) -> Callable[[str], GptqScheme | None]:
    """GPTQModel's `dynamic` rules, of which the first that matches counts: "-:NAME" excludes, others change."""
    base = scheme_from(source, source.settings, None)
    rules: list[tuple[re.Pattern[str], GptqScheme | None]] = []
    dynamic = mapping(source, "dynamic")
    names = compiled(source.config, "dynamic", (text.removeprefix("-:").removeprefix("+:") for text in dynamic))
    for name, (text, changes) in zip(names, dynamic.items(), strict=True):
        if text.startswith("-:"):
            rules.append((name, None))
        elif isinstance(changes, dict):
            rules.append((name, scheme_from(source, changes, base, f"dynamic[{text!r}].")))
        else:
            raise ModelError(
                f"{source.config}: quantization_config.dynamic[{text!r}] is {changes!r}, expected an object"
            )
    strings(source, "modules_in_block_to_quantize")  # which modules have a qweight says the same

    def scheme_of(module: str) -> GptqScheme | None:
        return next((scheme for name, scheme in rules if name.match(module)), base)

    return scheme_of


def _matrix(
    source: Source, module: str, rows: int, columns: int, scheme: GptqScheme, stored_minus_one: bool
) -> GroupedMatrix:
    bits, width = scheme.bits, min(scheme.group or columns, columns)
    for what, size in (("rows", rows), ("columns", columns)):
        if size * bits % 32 or (bits == 3 and size % 32):
            raise ModelError(
                f"{source.folder}: {module} has {size} {what}, {bits} bits of which do not fill words of 32 bits"
            )
    groups = -(-columns // width)
    words = source.array(module + ".qweight", ("I32",), (columns * bits // 32, rows))
    scales = source.numbers(module + ".scales", FLOATS, (groups, rows))
    zeros = _Zeros(source.array(module + ".qzeros", ("I32",), (groups, rows * bits // 32)), bits, int(stored_minus_one))
    if scheme.symmetric and source.contents:
        _require_middle(source, module, zeros)
        release(zeros.words)
    order = _order(source, module, columns, width, scheme)
    group = common_group(columns, width)
    group_of = np.arange(0, columns, group) // width
    grouping = Grouping("int8" if bits == 8 else "int4", group, minimum=not scheme.symmetric)
    raised = np.uint8(grouping.zero - zeros.middle if scheme.symmetric else 0)

    def read(start: int, end: int) -> Groups:
        values = unpack_words(words[:, start:end].T, bits)
        if order is not None:
            values = values[:, order]
        if raised:
            values = values + raised
        scale = scales[:, start:end].T
        if scheme.symmetric:
            return Groups(values, scale[:, group_of])
        minimum = zeros.rows(start, end).T * -scale
        return Groups(values, scale[:, group_of], minimum[:, group_of])

    return GroupedMatrix("gptq", (rows, columns), grouping, read, (words, zeros.words, scales.data), order)


@dataclass(frozen=True, slots=True)
class _Zeros:
    """Packed zero points: `words` [groups, rows * bits / 32], stored minus `offset`."""

    words: NDArray[np.generic]
    bits: int
    offset: int

    @property
    def middle(self) -> int:
        """The zero point of symmetric weights."""
        return 1 << self.bits - 1

    def rows(self, start: int, end: int) -> NDArray[np.float32]:
        """Those of some rows, [groups, rows]. A stored value one below 0 has become the largest."""
        first = start // 32 * self.bits
        values = unpack_words(self.words[:, first : -(-end // 32) * self.bits], self.bits)
        begin = start - start // 32 * 32
        found = values[:, begin : begin + end - start] + np.uint8(self.offset)
        return (found & np.uint8(2 * self.middle - 1)).astype(np.float32)


def _require_middle(source: Source, module: str, zeros: _Zeros) -> None:
    """Symmetric weights are read without their zero points."""
    size = zeros.words.shape[1] * 32 // zeros.bits
    for row in range(0, size, 4096):
        found = zeros.rows(row, min(row + 4096, size))
        wrong = found[found != zeros.middle]
        if len(wrong):
            raise ModelError(
                f"{source.folder}: tensor {module}.qzeros has the zero point {wrong[0]:.0f}, expected "
                f"{zeros.middle} everywhere as quantization_config.sym is true"
            )


def _order(source: Source, module: str, columns: int, width: int, scheme: GptqScheme) -> NDArray[np.int32] | None:
    """The columns sorted by group, None where they are stored so."""
    name = module + ".g_idx"
    if source.find(name) is None:
        if scheme.act_order and width < columns:
            raise ModelError(f"{source.folder}: tensor {name} is missing, and quantization_config.desc_act is true")
        return None
    group_of = source.array(name, ("I32", "I64"), (columns,))
    if width >= columns or not source.contents:
        return np.arange(columns, dtype=np.int32) if scheme.act_order and width < columns else None
    sorted_ = np.arange(columns) // width
    if np.array_equal(group_of, sorted_):
        return None
    order = np.argsort(group_of, kind="stable").astype(np.int32)
    if not np.array_equal(group_of[order], sorted_):
        raise ModelError(f"{source.folder}: tensor {name} does not give each of its groups {width} columns")
    if not scheme.act_order:
        raise ModelError(
            f"{source.folder}: tensor {name} has groups whose columns are apart, "
            "expected adjacent ones as quantization_config.desc_act is false"
        )
    return order
