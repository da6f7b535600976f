"""A dataclass whose fields carry knobs is a table: it reads texts, checks values and says what is wrong with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.knobs import BYTES, Knob, Setting, quantity, settings_of


@dataclass(frozen=True)
class Oven:
    """Settings of each kind."""

    mode: Annotated[Literal["grill", "fan"], Knob("what is hot")] = "fan"
    degrees: Annotated[int | None, Knob("heat", unset="off", unit="degrees", low=50, high=250)] = None
    seconds: Annotated[float, Knob("time", low=0.5, high=60)] = 1.5
    tray: Annotated[int, Knob("which", key="tray-number", choices=(1, 3))] = 1
    room: Annotated[int | None, Knob("space", unset="all", unit=BYTES)] = None
    light: Annotated[bool, Knob("whether one sees")] = True
    label: Annotated[str, Knob("name", pattern="[a-z]+", hint="use small letters")] = "oven"
    plain: int = 3


TABLE = {setting.name: setting for setting in settings_of(Oven)}


def test_the_table_has_the_fields_with_knobs_in_order() -> None:
    assert list(TABLE) == ["mode", "degrees", "seconds", "tray", "room", "light", "label"]
    assert [setting.key for setting in TABLE.values()][3] == "tray-number"
    assert [setting.default_text for setting in TABLE.values()] == ["fan", "off", "1.5", "1", "all", "on", "oven"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mode", "grill", "grill"),
        ("degrees", "50", 50),
        ("seconds", "0.5", 0.5),
        ("tray", "3", 3),
        ("room", "2Mi", 2**21),
        ("label", "abc", "abc"),
    ],
)
def test_texts_are_read_as_the_type_says(name: str, text: str, value: object) -> None:
    read = TABLE[name].parse(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mode", "steam", "'steam' is not a mode; choose grill or fan"),
        ("degrees", "251", "'251' is not a number of degrees from 50 to 250"),
        ("degrees", "5e1", "'5e1' is not a number of degrees from 50 to 250"),
        ("seconds", "nan", "'nan' is not a number from 0.5 to 60"),
        ("tray", "2", "'2' is not a tray number; choose 1 or 3"),
        ("room", "512", "512 is less than 1Mi; even one block of a small model needs more, try 512Mi"),
        ("room", "1Q", "'1Q' is not a size in bytes; write it like 512Mi or 2Gi"),
        ("label", "A", "'A' is not a label; use small letters"),
    ],
)
def test_what_is_wrong_with_a_text_is_said_with_the_fix(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TABLE[name].parse(text)


@pytest.mark.parametrize(
    ("name", "value"), [("mode", "fan"), ("degrees", 250), ("seconds", 2), ("tray", 2), ("room", 5), ("light", False)]
)
def test_a_program_may_give_what_the_type_and_the_bounds_allow(name: str, value: object) -> None:
    TABLE[name].check(value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mode", "steam", "choose grill or fan"),
        ("degrees", 49, "49 is not a number of degrees from 50"),
        ("degrees", True, "True is not a number"),
        ("degrees", 60.0, "60.0 is not a number"),
        ("seconds", float("nan"), "nan is not a number from 0.5 to 60"),
        ("light", 1, "1 is neither True nor False"),
    ],
)
def test_and_nothing_else(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TABLE[name].check(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("512Mi", 2**29), ("1.5Gi", 3 * 2**29), ("2k", 2000), ("3G", 3 * 10**9)],
)
def test_quantities(text: str, size: int) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize("setting", settings_of(EngineSettings), ids=lambda setting: setting.name)
def test_every_default_is_allowed(setting: Setting) -> None:
    if setting.default is not None:
        setting.check(setting.default)
