"""Settings as the arguments of a constructor: `LLM("smollm2", max_model_len=4096, kv_memory="512Mi")`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from octavo_inference.common.errors import SettingsError
from octavo_protocol.knobs import BYTES, Setting, settings_of

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def arguments_of(
    settings: Callable[P, S], /, **defaults: Any
) -> Callable[[Callable[[T, S], None]], Callable[Concatenate[T, P], None]]:
    """Decorator of an `__init__` that takes this settings class: callers pass the fields of the class instead.

    `defaults` replace the class defaults. Raises `SettingsError` for a value that its `Knob` does not allow.
    """
    create = cast("Callable[..., S]", settings)
    table = {setting.name: setting for setting in settings_of(cast("type", settings))}
    signature = inspect.signature(settings)

    def decorate(init: Callable[[T, S], None]) -> Callable[Concatenate[T, P], None]:
        @functools.wraps(init)
        def with_arguments(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
            given = signature.bind(*args, **kwargs).arguments
            checked = {name: _checked(table[name], value) for name, value in given.items()}
            init(self, create(**{**defaults, **checked}))

        cast("Any", with_arguments).__signature__ = _shown(signature, get_type_hints(settings), defaults)
        return with_arguments

    return decorate


def _checked(setting: Setting, value: object) -> object:
    if value is None and setting.default is None:
        return None
    try:
        if setting.knob.unit == BYTES and isinstance(value, str):
            return setting.parse(value)
        setting.check(value)
    except ValueError as error:
        raise SettingsError(f"{setting.name}: {error}", setting.name) from None
    return value


def _shown(signature: inspect.Signature, hints: dict[str, Any], defaults: dict[str, Any]) -> inspect.Signature:
    """The signature that `help` displays, with plain types."""
    fields = [
        field.replace(annotation=hints[name], default=defaults.get(name, field.default))
        for name, field in signature.parameters.items()
    ]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([itself, *fields])
