"""The formats by name, and which one a chat template uses."""

from __future__ import annotations

from octavo_inference.chat_format.formats.hermes import HERMES, SMOLLM2
from octavo_inference.chat_format.tool_format import ToolFormat

TOOL_FORMATS: dict[str, ToolFormat] = {form.name: form for form in (HERMES, SMOLLM2)}
"""By name."""

# In this order: the first of which a chat template has all texts.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("smollm2", ("<tool_call>[",)),
    ("hermes", ("<tool_call>",)),
    # SmolLM2's template has no tools in it.
    ("smollm2", ("named SmolLM, trained by Hugging Face",)),
)


def tool_format(name: str) -> ToolFormat:
    """The format of this name. Raises `KeyError`."""
    return TOOL_FORMATS[name]


def detect_tool_format(template: str) -> str | None:
    """The name of the format that a chat template's source is written for, None for one that is not known."""
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)
