"""AutoRound checkpoints (`quant_method` auto-round): modules packed as GPTQ's or AWQ's, by `packing_format`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo_inference.checkpoints.quantized import awq, gptq
from octavo_inference.checkpoints.quantized.patterns import compiled
from octavo_inference.checkpoints.quantized.settings import mapping, setting
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.groups import GroupedMatrix

# Whether zero points are stored minus 1.
_GPTQ = {
    "auto_round:auto_gptq": True,
    "auto_round:gptq": True,
    "auto": True,
    "auto_round:gptqmodel": False,
    "auto_round": False,
}
_AWQ = ("auto_round:auto_awq", "auto_round:awq")
_FLOAT_BITS = 16


def reader(source: Source) -> QuantizedReader:
    """Reads modules in one of the packings. Raises `ModelError` and `UnsupportedModelError` for bad settings."""
    given = source.settings
    packing = setting(source, "packing_format", given.get("packing_format", _usual_packing(given)), (*_GPTQ, *_AWQ))
    setting(source, "data_type", given.get("data_type", "int"), ("int",))
    base = gptq.scheme_from(source, given, None)
    scheme_of = _schemes(source, base)
    if packing not in _AWQ:
        return gptq.packed_reader(source, scheme_of, stored_minus_one=_GPTQ[packing])
    read = awq.reader(source)

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        scheme = scheme_of(module)
        if scheme not in (None, base):
            raise UnsupportedModelError(
                f"{source.config}: quantization_config.extra_config quantizes {module} differently, "
                f"which is not supported with packing_format {packing}; supported is {', '.join(_GPTQ)}"
            )
        return read(module, rows, columns)

    return matrix


def _usual_packing(given: Mapping[str, Any]) -> str:
    """The packing of checkpoints that name none, as of AutoRound and vLLM."""
    backend = given.get("backend")
    return "auto_round:auto_awq" if isinstance(backend, str) and "awq" in backend else "auto_round:auto_gptq"


def _schemes(source: Source, base: gptq.GptqScheme) -> Callable[[str], gptq.GptqScheme | None]:
    """`extra_config` has settings of modules by name, or by a regular expression."""
    named: dict[str, gptq.GptqScheme | None] = {}
    for name, changes in mapping(source, "extra_config").items():
        named[name] = _changed(source, name, changes, base)
    texts = [name for name in named if set(name) & set("*+?^$()[]{}|\\")]
    patterns = compiled(source.config, "extra_config", texts, anywhere=True)
    rules = [(pattern, named[text]) for pattern, text in zip(patterns, texts, strict=True)]

    def scheme_of(module: str) -> gptq.GptqScheme | None:
        if module in named:
            return named[module]
        return next((scheme for pattern, scheme in rules if pattern.search(module)), base)

    return scheme_of


def _changed(source: Source, name: str, changes: Any, base: gptq.GptqScheme) -> gptq.GptqScheme | None:
    """None for modules that stay floats."""
    place = f"extra_config[{name!r}]"
    if not isinstance(changes, dict):
        raise ModelError(f"{source.config}: quantization_config.{place} is {changes!r}, expected an object")
    bits = changes.get("bits")
    if isinstance(bits, int) and bits >= _FLOAT_BITS:
        return None
    return gptq.scheme_from(source, changes, base, place + ".")
