"""Declares settings once, as fields of a frozen dataclass: `name: Annotated[type, Knob(...)] = default`.

The declaration is the single source. Adapters derive from it the flags, the settings file, the arguments of `LLM`, the
fields of the LLMDeployment and the reference page. Each adapter belongs to the part that uses it. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

BYTES: Final = "bytes"

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SMALLEST_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class ApiField:
    """The LLMDeployment field of a setting; `path` is below `spec.engine`.

    `description` defaults to the knob's help. If `filled` is true, the API server fills in the default; if false, a set
    value stays distinguishable from an unset one. `high` is the API's own upper bound, if it is lower than the knob's.
    The API has no fractions: its number is the setting's value times `scale`.
    """

    path: str
    description: str = ""
    _: dataclasses.KW_ONLY
    filled: bool = False
    high: int | None = None
    scale: int = 1

    @property
    def block(self) -> str:
        """Path of the enclosing block; "" for `spec.engine` itself."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Name of the field in its block."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Knob:
    """Metadata of a setting that its type and default do not contain.

    `unset` describes the effect of no value, where the default does not. `low` and `high` are inclusive. `choices` are
    the values that flags offer, if a program may pass more. `pattern` matches the whole text; `hint` ends the message
    if a text does not match. `key` is the name in files and, after two dashes, of the flag, if it differs from the
    field's. `group` is a heading of the help and the reference page.
    """

    help: str
    _: dataclasses.KW_ONLY
    unset: str = ""
    group: str = "engine"
    key: str = ""
    unit: str = ""
    metavar: str | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str | int, ...] = ()
    pattern: str = ""
    hint: str = ""
    api: ApiField | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A field and its knob. `type` is the field type without None: bool, int, float, str, Literal or a tuple of str."""

    name: str
    type: Any
    default: Any
    knob: Knob

    @property
    def key(self) -> str:
        """Name in a settings file; the flag is `--` and this."""
        return self.knob.key or self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str | int, ...]:
        """All values, if they can be enumerated."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def offered(self) -> tuple[str | int, ...]:
        """The values that flags and the API accept, if they can be enumerated."""
        return self.knob.choices or self.choices

    @property
    def is_switch(self) -> bool:
        """True for a boolean: `--key` and `--no-key`."""
        return self.type is bool

    @property
    def is_list(self) -> bool:
        """True for a list of texts: the flag may be repeated."""
        return get_origin(self.type) is tuple

    @property
    def default_text(self) -> str:
        """The default as readable text."""
        if self.knob.unset:
            return self.knob.unset
        if self.is_switch:
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def parse(self, text: str) -> Any:
        """Parse a text from a flag or a file. Raises `ValueError` with the text and the fix."""
        if self.offered:
            found = [choice for choice in self.offered if str(choice) == text]
            if not found:
                raise ValueError(f"{text!r} is not a {self._words}; choose {_listed(self.offered)}")
            return found[0]
        if self.knob.unit == BYTES:
            return _size(text)
        if self.type in {int, float}:
            if re.fullmatch(r"\d{1,12}" if self.type is int else r"\d+(\.\d+)?", text) is None:
                raise ValueError(self._out_of_bounds(text))
            value = self.type(text)
            self._check_bounds(value, text)
            return value
        if self.knob.pattern and re.fullmatch(self.knob.pattern, text) is None:
            raise ValueError(f"{text!r} is not a {self._words}; {self.knob.hint}")
        return text

    def check(self, value: object) -> None:
        """Validate a value that a program passes. Raises `ValueError` with the value and the fix."""
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not a {self._words}; choose {_listed(self.choices)}")
        if self.is_switch and not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither True nor False")
        if self.type in {int, float}:
            self._check_bounds(value, value)

    def _check_bounds(self, value: Any, shown: object) -> None:
        is_number = isinstance(value, int | float if self.type is float else int) and not isinstance(value, bool)
        low = -math.inf if self.knob.low is None else self.knob.low
        high = math.inf if self.knob.high is None else self.knob.high
        if not (is_number and low <= value <= high):
            raise ValueError(self._out_of_bounds(shown))

    def _out_of_bounds(self, shown: object) -> str:
        of = f" of {self.knob.unit}" if self.knob.unit else ""
        bounds = [f"{word} {end}" for word, end in (("from", self.knob.low), ("to", self.knob.high)) if end is not None]
        return " ".join([f"{shown!r} is not a number{of}", *bounds])

    @property
    def _words(self) -> str:
        return self.key.replace("-", " ")


@functools.cache
def settings_of(cls: type) -> tuple[Setting, ...]:
    """All settings of a dataclass, in the order of its fields; skips fields without a knob."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        knobs = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Knob)]
        found += [Setting(field.name, _without_none(hint.__origin__), field.default, knob) for knob in knobs]
    return tuple(found)


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `512Mi`, `2Gi`, `1.5G` or a plain number. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a size in bytes; write it like 512Mi or 2Gi")
    return int(float(match[1]) * _SUFFIXES[match[2] or ""])


def _size(text: str) -> int:
    """Parse a size and reject tiny ones: such a size is useless, so its unit was forgotten."""
    size = quantity(text)
    if size < _SMALLEST_SIZE:
        raise ValueError(f"{text} is less than 1Mi; even one block of a small model needs more, try 512Mi")
    return size


def _without_none(annotation: Any) -> Any:
    options = [option for option in get_args(annotation) if option is not NoneType]
    optional = NoneType in get_args(annotation)
    return options[0] if optional else annotation


def _listed(choices: tuple[str | int, ...]) -> str:
    *first, last = map(str, choices)
    return f"{', '.join(first)} or {last}" if first else last
