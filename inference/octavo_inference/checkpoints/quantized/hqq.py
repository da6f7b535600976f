"""HQQ checkpoints (`quant_method` hqq): 1, 2, 3, 4 and 8 bits, with a zero point that is no whole number.

    W_q    uint8, or int32 for 3 bits   values as [groups, group] (axis 1) or [group, groups] (axis 0), packed
    scale  float                        [groups, 1] or [1, groups]
    zero   float                        [groups, 1] or [1, groups]

    weight = (value - zero) * scale

Groups of axis 1 run over the rows one after another. Those of axis 0 take each `groups`-th weight, so that neighbours
have different scales: each weight is read with its own. Packing puts rows far apart into one element: of `n` values in
it, the highest bits are a row of the first n-th part, the lowest one of the last. Three bits are ten in an int32.

Bits, group size and axis follow from the sizes of tensors; tensors `nbits`, `group_size`, `axis` and `shape`, and
`quant_config` in config.json, have to say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized.settings import mapping, strings
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import Bytes, GroupedMatrix, Grouping, Groups, common_group

# Values in an element, by bits.
_PACKED = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
# The bits that values of these are stored in.
_STORED_BITS = {8: 8, 6: 8, 5: 8, 4: 4, 3: 3, 2: 2, 1.58: 2, 1: 1}


def reader(source: Source) -> QuantizedReader:
    """Reads the modules that have a `W_q`. Raises `ModelError` for a bad description."""
    quant_config = mapping(source, "quant_config")
    strings(source, "skip_modules")  # which modules have a W_q says the same

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        if source.find(module + ".W_q") is None:
            return None
        described = _described(source, module, quant_config)
        packing = _packing(source, module, rows * columns, described.get("nbits"))
        _require_same(source, module, described, packing, rows, columns)
        return _matrix(source, module, rows, columns, packing)

    return matrix


@dataclass(frozen=True, slots=True)
class _Packing:
    """`values` [height, width] packed along the height."""

    bits: int
    axis: int
    groups: int
    height: int
    width: int

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return self.height * self.width // self.groups

    @property
    def step(self) -> int:
        """Rows of the packed tensor."""
        return -(-self.height // _PACKED[self.bits])

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor."""
        return self.step * self.width * (4 if self.bits == 3 else 1)


def _packing(source: Source, module: str, size: int, nbits: Any) -> _Packing:
    """What the headers say of a module with `size` weights. `nbits` decides where several have the same size."""
    scale, packed = source.find(module + ".scale"), source.find(module + ".W_q")
    if scale is None or packed is None:
        raise ModelError(f"{source.folder}: tensor {module}.scale is missing")
    groups = scale.data.nbytes // (4 if scale.dtype == "F32" else 2)
    if scale.dtype not in FLOATS or scale.shape not in ((groups, 1), (1, groups)) or not groups or size % groups:
        raise ModelError(
            f"{source.folder}: tensor {module}.scale has shape {list(scale.shape)} {scale.dtype}, "
            f"expected a column or a row of {' or '.join(FLOATS)} of which each is for as many of {size} weights"
        )
    axis = 1 if scale.shape == (groups, 1) else 0
    height, width = (groups, size // groups) if axis == 1 else (size // groups, groups)
    # With hqq's `view_as_float`, any bits have a type of floats.
    possible = (3,) if packed.dtype == "I32" else (8, 4, 2, 1) if packed.dtype == "U8" else tuple(_PACKED)
    packings = (_Packing(bits, axis, groups, height, width) for bits in possible)
    fitting = [packing for packing in packings if packing.nbytes == packed.data.nbytes]
    if fitting:
        return next((packing for packing in fitting if _stored_bits(nbits) == packing.bits), fitting[0])
    raise ModelError(
        f"{source.folder}: tensor {module}.W_q has {packed.data.nbytes} bytes, expected those of "
        f"{', '.join(map(str, sorted(_PACKED)))} bits for {size} weights"
    )


def _stored_bits(nbits: Any) -> int | None:
    return _STORED_BITS.get(nbits) if isinstance(nbits, int | float) else None


def _described(source: Source, module: str, quant_config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of a module: by the end of its name as `self_attn.q_proj`, or of all."""
    tag = ".".join(part for part in module.split(".") if part not in {"model", "layers"} and not part.isnumeric())
    given = quant_config.get(tag, quant_config)
    found = given.get("weight_quant_params") if isinstance(given, dict) else None
    if found is not None and not isinstance(found, dict):
        raise ModelError(
            f"{source.config}: quantization_config.quant_config has weight_quant_params {found!r}, expected an object"
        )
    return found or {}


def _require_same(
    source: Source, module: str, described: dict[str, Any], packing: _Packing, rows: int, columns: int
) -> None:
    """Raises `ModelError` for a description of other sizes than those of the tensors."""
    said = [
        (str(source.config), f"quantization_config.quant_config.weight_quant_params.{key}", key, described.get(key))
        for key in ("nbits", "group_size", "axis")
    ]
    if source.contents:
        for key in ("nbits", "group_size", "axis", "shape"):
            name = f"{module}.{key}"
            if source.find(name) is None:
                continue
            shape = (2,) if key == "shape" else ()
            array = source.array(name, ("I32", "I64", "F32"), shape, shape or (1,))
            value = array.tolist() if key == "shape" else round(array.reshape(-1).tolist()[0], 2)
            said.append((str(source.folder), f"tensor {name}", key, value))
    sizes = {"nbits": packing.bits, "group_size": packing.group, "axis": packing.axis}
    actual: dict[str, Any] = sizes | {"shape": [rows, columns]}
    for file, what, key, value in said:
        found = _stored_bits(value) if key == "nbits" else value
        if value is not None and found != actual[key]:
            raise ModelError(f"{file}: {what} is {value!r}, the sizes of {module}'s tensors say {actual[key]}")


def _matrix(source: Source, module: str, rows: int, columns: int, packing: _Packing) -> GroupedMatrix:
    data = source.checkpoint.tensors[module + ".W_q"].data
    elements: NDArray[np.integer[Any]] = data.view(np.int32) if packing.bits == 3 else data
    packed = elements.reshape(packing.step, packing.width)
    shape = (packing.groups, 1) if packing.axis == 1 else (1, packing.groups)
    scales = source.numbers(module + ".scale", FLOATS, shape).reshape(-1)
    zeros = source.numbers(module + ".zero", FLOATS, shape).reshape(-1)
    group = common_group(columns, packing.group) if packing.axis == 1 else 1
    grouping = Grouping("int8" if packing.bits == 8 else "int4", group, minimum=True)

    def read(start: int, end: int) -> Groups:
        first, last = start * columns // packing.width, -(-end * columns // packing.width)
        begin = start * columns - first * packing.width
        values = _unpacked(packed, packing, first, last).reshape(-1)[begin : begin + (end - start) * columns]
        weights = np.arange(start * columns, end * columns, group)
        group_of = weights // packing.width if packing.axis == 1 else weights % packing.width
        scale, zero = scales[group_of], zeros[group_of]
        wide = (end - start, columns // group)
        return Groups(values.reshape(end - start, columns), scale.reshape(wide), (-zero * scale).reshape(wide))

    return GroupedMatrix("hqq", (rows, columns), grouping, read, (data, scales.data, zeros.data))


def _unpacked(packed: NDArray[np.integer[Any]], packing: _Packing, first: int, last: int) -> Bytes:
    """Rows of the values, [last - first, width]."""
    many, step, bits = _PACKED[packing.bits], packing.step, packing.bits
    values = np.empty((last - first, packing.width), np.uint8)
    for part in range(first // step, -(-last // step)):
        low, high = max(first, part * step), min(last, (part + 1) * step)
        found = packed[low - part * step : high - part * step]
        values[low - first : high - first] = found >> bits * (many - 1 - part) & (1 << bits) - 1
    return values
