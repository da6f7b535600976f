"""Which formats a model's answers have."""

from typing import get_args

from octavo_inference.answers.formats import answer_formats
from octavo_inference.chat_format.formats.known import REASONING_FORMATS, TOOL_FORMATS
from octavo_protocol.engine_settings import ReasoningParserName, ToolParserName


def test_flags_offer_all_formats():
    assert set(get_args(ToolParserName)) == {*TOOL_FORMATS, "none"}
    assert set(get_args(ReasoningParserName)) == {*REASONING_FORMATS, "none"}


def test_the_chat_template_decides_unless_a_flag_does():
    template = "<tool_call> <think> </think>"
    found = answer_formats(template, None, None)
    assert (found.tools.name, found.reasoning.name) == ("hermes", "think")
    chosen = answer_formats(template, "mistral", "magistral")
    assert (chosen.tools.name, chosen.reasoning.name) == ("mistral", "magistral")
    none = answer_formats(template, "none", "none")
    assert (none.tools, none.reasoning, none.enforced_tools.name) == (None, None, "hermes")


def test_a_model_without_template_calls_in_the_generic_form():
    found = answer_formats(None, None, None)
    assert (found.tools.name, found.reasoning) == ("hermes", None)
