"""The schemes of a compressed-tensors checkpoint: how the weights of each layer are stored, by its name. Pure.

Keys and defaults as in QuantizationConfig and QuantizationArgs of the package compressed-tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.quantized.patterns import compiled
from octavo_inference.checkpoints.quantized.scale_grid import ALL_COLUMNS
from octavo_inference.checkpoints.quantized.settings import shown
from octavo_inference.common.errors import ModelError, UnsupportedModelError

PACKED = "pack-quantized"
INTEGER, FLOAT, NAIVE = "int-quantized", "float-quantized", "naive-quantized"
NVFP4, MXFP4, MXFP8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
DENSE = "dense"
_MIXED = "mixed-precision"
_FORMATS = (PACKED, INTEGER, FLOAT, NAIVE, NVFP4, MXFP4, MXFP8, DENSE)
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
_PATTERN = "re:"
_CLASS = "Linear"
# Orders of calibration; only some of them permute the columns that are stored.
_BY_COLUMN = (True, "group", "dynamic")
_ORDERS = (None, False, "weight", "static", *_BY_COLUMN)
# A language model inside of a multimodal one: names of modules and of tensors differ in releases of transformers.
_PREFIXES = ("model.language_model.", "language_model.model.")


@dataclass(frozen=True, slots=True)
class LayerScheme:
    """How the weights of layers are stored: `bits` of integers or floats, and the rows and columns that share a scale.

    `block` is None for one scale. `ordered`: groups are those of a permutation of the columns.
    """

    format: str
    bits: int
    floats: bool
    symmetric: bool
    strategy: str
    block: tuple[int, int] | None
    ordered: bool

    @property
    def grouped(self) -> bool:
        """Whether rows have scales for groups of columns."""
        return self.strategy in {"group", "tensor_group"}


@dataclass(frozen=True, slots=True)
class LayerSchemes:
    """LayerSchemes by target, which is a layer's name, a pattern or the class `Linear`; `ignored` layers have none."""

    targets: Mapping[str, LayerScheme | None]
    patterns: tuple[tuple[re.Pattern[str], LayerScheme | None], ...]
    ignored: frozenset[str]
    ignored_patterns: tuple[re.Pattern[str], ...]

    def of(self, module: str) -> LayerScheme | None:
        """The scheme of a linear layer: of its name, else of a pattern that it begins with, else of all layers."""
        names = tuple(_names(module))
        if not self.ignored.isdisjoint((*names, _CLASS)) or any(_matches(one, names) for one in self.ignored_patterns):
            return None
        for name in names:
            if name in self.targets:
                return self.targets[name]
        found = (scheme for pattern, scheme in self.patterns if _matches(pattern, names))
        return next(found, self.targets.get(_CLASS))


def read_schemes(path: Path, settings: dict[str, Any]) -> LayerSchemes:
    """The schemes of `quantization_config` of the file `path`.

    Raises `ModelError` for values that cannot be, `UnsupportedModelError` for formats that are not supported.
    """
    whole = settings.get("format") or DENSE
    if whole != _MIXED:
        _supported(path, "format", whole)
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict):
        raise ModelError(f"{path}: quantization_config.config_groups is {shown(groups)}, expected an object")
    targets: dict[str, LayerScheme | None] = {}
    for name, group in groups.items():
        key = f"config_groups.{name}"
        if not isinstance(group, dict):
            raise ModelError(f"{path}: quantization_config.{key} is {shown(group)}, expected an object")
        scheme = _scheme(path, key, group, whole)
        targets |= dict.fromkeys(_strings(path, f"{key}.targets", group.get("targets")), scheme)
    patterns = sorted(target for target in targets if target.startswith(_PATTERN))
    found = compiled(path, "config_groups", (target.removeprefix(_PATTERN) for target in patterns))
    ignored = _strings(path, "ignore", settings.get("ignore"))
    return LayerSchemes(
        targets,
        tuple((pattern, targets[target]) for pattern, target in zip(found, patterns, strict=True)),
        frozenset(ignored),
        tuple(compiled(path, "ignore", (name.removeprefix(_PATTERN) for name in ignored if name.startswith(_PATTERN)))),
    )


def _scheme(path: Path, key: str, group: dict[str, Any], whole: str) -> LayerScheme | None:
    weights = group.get("weights")
    if weights is None:
        return None
    key += ".weights"
    if not isinstance(weights, dict):
        raise ModelError(f"{path}: quantization_config.{key} is {shown(weights)}, expected an object")
    bits = _number(path, f"{key}.num_bits", weights.get("num_bits", 8), 1, 8)
    kind = weights.get("type", "int")
    if kind not in ("int", "float"):
        raise ModelError(f"{path}: quantization_config.{key}.type is {shown(kind)}, expected 'int' or 'float'")
    floats = kind == "float"
    if floats and bits not in {4, 8}:
        raise UnsupportedModelError(
            f"{path}: quantization_config.{key} has floats of {bits} bits; supported are floats of 4 and 8 bits"
        )
    symmetric = weights.get("symmetric", True)
    if not isinstance(symmetric, bool) or (floats and not symmetric):
        expected = "true: floats have no zero points" if floats else "true or false"
        raise ModelError(f"{path}: quantization_config.{key}.symmetric is {shown(symmetric)}, expected {expected}")
    strategy, block = _strategy(path, key, weights)
    given = group.get("format") or (whole if whole != _MIXED else _usual(floats, bits, block, group))
    format_ = _supported(path, key.removesuffix("weights") + "format", given)
    if not _holds(format_, floats, bits, block):
        stored = f"{bits}-bit {'floats' if floats else 'integers'}"
        raise ModelError(
            f"{path}: quantization_config.{key} describes {stored} by {strategy}, which {format_} does not hold"
        )
    order = weights.get("actorder")
    if order not in _ORDERS:
        raise ModelError(
            f"{path}: quantization_config.{key}.actorder is {shown(order)}, expected 'group', 'weight' or null"
        )
    return LayerScheme(format_, bits, floats, symmetric, strategy, block, order in _BY_COLUMN)


def _strategy(path: Path, key: str, weights: dict[str, Any]) -> tuple[str, tuple[int, int] | None]:
    """The strategy, and the rows and columns that share a scale; None are all."""
    group = weights.get("group_size")
    if group is not None:
        group = _number(path, f"{key}.group_size", group, -1, ALL_COLUMNS)
    strategy = weights.get("strategy")
    if strategy is None:
        strategy = "tensor" if group is None else "group" if group > 0 else "channel"
    if strategy not in _STRATEGIES:
        raise UnsupportedModelError(
            f"{path}: quantization_config.{key}.strategy {shown(strategy)} is not supported; supported are "
            f"{', '.join(_STRATEGIES)}"
        )
    if strategy == "tensor":
        return strategy, None
    if strategy == "channel":
        return strategy, (1, ALL_COLUMNS)
    if strategy == "block":
        sizes = weights.get("block_structure")
        if isinstance(sizes, str):  # older checkpoints have "128x128"
            sizes = [int(size) if re.fullmatch("[0-9]{1,9}", size) else size for size in sizes.split("x")]
        if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise ModelError(f"{path}: quantization_config.{key}.block_structure is {shown(sizes)}, expected two sizes")
        return strategy, (sizes[0], sizes[1])
    if group is None or group < 1:
        raise ModelError(
            f"{path}: quantization_config.{key}.group_size is {shown(group)}, expected the columns of a group"
        )
    return strategy, (1, group)


def _holds(format_: str, floats: bool, bits: int, block: tuple[int, int] | None) -> bool:
    """Whether a format holds such weights."""
    if format_ in {PACKED, INTEGER}:
        return not floats
    if format_ in {NVFP4, MXFP4, MXFP8}:
        return floats and (bits, block) == {NVFP4: (4, (1, 16)), MXFP4: (4, (1, 32)), MXFP8: (8, (1, 32))}[format_]
    return format_ == DENSE or (bits == 8 if floats else format_ == NAIVE)


def _usual(floats: bool, bits: int, block: tuple[int, int] | None, group: dict[str, Any]) -> str:
    """The format in which compressed-tensors stores a scheme that names none."""
    if floats and bits == 4:
        return NVFP4 if block == (1, 16) else MXFP4
    if floats:
        return FLOAT
    return PACKED if group.get("input_activations") is None else INTEGER


def _supported(path: Path, key: str, format_: object) -> str:
    if format_ == "fakequant":  # weights are floats that went through a quantization
        return DENSE
    if not isinstance(format_, str) or format_ not in _FORMATS:
        raise UnsupportedModelError(
            f"{path}: quantization_config.{key} {shown(format_)} is not supported; supported are "
            f"{', '.join((*_FORMATS, _MIXED))}"
        )
    return format_


def _number(path: Path, key: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ModelError(
            f"{path}: quantization_config.{key} is {shown(value)}, expected a whole number from {least} to {most}"
        )
    return value


def _strings(path: Path, key: str, given: Any) -> tuple[str, ...]:
    found = [] if given is None else given
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ModelError(f"{path}: quantization_config.{key} is {shown(given)}, expected a list of names")
    return tuple(found)


def _names(module: str) -> Iterator[str]:
    yield module
    for prefix in _PREFIXES:
        if module.startswith(prefix):
            yield from (other + module.removeprefix(prefix) for other in _PREFIXES if other != prefix)


def _matches(pattern: re.Pattern[str], names: tuple[str, ...]) -> bool:
    return any(pattern.match(name) for name in names)
