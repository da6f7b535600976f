"""The engine's settings as fields of the API: see `octavo_protocol.knobs`.

A setting whose knob has an `ApiField` becomes a field of the block that it names, and comes back as a line of the
server's settings file or as `EngineSettings`, whose types the operator's own sums rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from pydantic import Field, create_model
from pydantic.alias_generators import to_snake

from octavo_operator.api.base import ApiBlock, Bytes
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.knobs import BYTES, ApiField, Setting, quantity, settings_of

Block = TypeVar("Block", bound=ApiBlock)

_FIELDS: tuple[tuple[Setting, ApiField], ...] = tuple(
    (setting, setting.knob.api) for setting in settings_of(EngineSettings) if setting.knob.api is not None
)


def with_knobs(block: str) -> Callable[[type[Block]], type[Block]]:
    """Class decorator: adds the fields of the settings that are in this block of `spec.engine`."""
    fields: dict[str, Any] = {
        to_snake(api.name): (_type(setting, api), _field(setting, api))
        for setting, api in _FIELDS
        if api.block == block
    }

    def extended(cls: type[Block]) -> type[Block]:
        return create_model(cls.__name__, __base__=cls, __doc__=cls.__doc__, __module__=cls.__module__, **fields)

    return extended


def given(engine: ApiBlock) -> dict[str, Any]:
    """The settings in the API, by their names in a settings file; None for those left open."""
    return {setting.key: value for setting, value in _values(engine)}


def engine_settings(engine: ApiBlock) -> EngineSettings:
    """The settings in the API as the engine takes them; what is left open has the engine's default."""
    values: dict[str, Any] = {
        setting.name: quantity(value) if setting.knob.unit == BYTES else value
        for setting, value in _values(engine)
        if value is not None
    }
    return EngineSettings(**values)


def _values(engine: ApiBlock) -> Iterator[tuple[Setting, Any]]:
    for setting, api in _FIELDS:
        value: Any = engine
        for name in api.path.split("."):
            value = getattr(value, to_snake(name))
        yield setting, value if value is None or api.scale == 1 else value / api.scale


def _type(setting: Setting, api: ApiField) -> Any:
    kind: Any = setting.type
    if setting.knob.unit == BYTES:
        kind = Bytes
    elif setting.offered:
        kind = Literal.__getitem__(setting.offered)
    elif kind is float:
        kind = int
    return kind if api.filled else kind | None


def _field(setting: Setting, api: ApiField) -> Any:
    knob = setting.knob
    low = None if setting.offered or knob.low is None else round(knob.low * api.scale)
    high = None if setting.offered or knob.high is None else api.high or round(knob.high * api.scale)
    bounds = "" if low is None or high is None else f" Must be between {low} and {high}."
    derived = f"{api.name}: {knob.help}.{bounds} Defaults to {setting.default_text}."
    return Field(
        default=setting.default if api.filled else None,
        ge=low,
        le=high,
        description=api.description or derived,
    )
