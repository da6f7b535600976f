"""A constructor takes the fields of settings as its arguments, checked by the table."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.arguments import arguments_of
from octavo_inference.config.engine import EngineSettings


class Model:
    """Takes what `LLM` takes."""

    @arguments_of(EngineSettings, static_wait_ms=0)
    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings


def test_arguments_are_the_fields_with_own_defaults_and_sizes_as_text() -> None:
    assert Model().settings == EngineSettings(static_wait_ms=0)
    given = Model("folder", kv_memory="512Mi", static_wait_ms=7, overlap=None, block_size=4).settings
    assert given == EngineSettings("folder", kv_memory=2**29, static_wait_ms=7, block_size=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "fp8"}, "dtype: 'fp8' is not a dtype; choose auto, bfloat16 or float32"),
        ({"max_model_len": 3}, "max_model_len: 3 is not a number of tokens from 16 to 16777216"),
        ({"kv_memory": "512"}, "kv_memory: 512 is less than 1Mi"),
        ({"prefix_caching": "yes"}, "prefix_caching: 'yes' is neither True nor False"),
        ({"threads": 0}, "threads: 0 is not a number of threads from 1 to 1024"),
    ],
)
def test_a_wrong_value_is_refused_with_field_and_fix(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Model(**arguments)
    assert str(caught.value).startswith(message)
    assert caught.value.field in arguments


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_model_length"):
        Model(max_model_length=5)


def test_help_shows_the_arguments() -> None:
    shown = inspect.signature(Model).parameters
    assert list(shown) == list(inspect.signature(EngineSettings).parameters)
    assert (shown["max_model_len"].annotation, shown["static_wait_ms"].default) == (int | None, 0)
