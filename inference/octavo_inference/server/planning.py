"""Prompts of conversations with tools and thinking, and the plan of their answers; the same for every API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from starlette.requests import Request as HttpRequest

from octavo_inference.answers.history import for_template
from octavo_inference.answers.plan import AnswerPlan, begin_thinking
from octavo_inference.answers.tools import Tools
from octavo_inference.server.prompts import tenant_of
from octavo_inference.server.refusals import unsupported
from octavo_inference.server.service import Loaded, Service

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message, TemplateOptions

# Variables by which templates switch thinking on or off.
SWITCHES = ("enable_thinking", "thinking")


def prompt_tokens(
    loaded: Loaded,
    messages: Sequence[Message],
    given: Tools | None,
    *,
    bounded: bool = True,
    guided: bool = False,
    **options: Unpack[TemplateOptions],
) -> list[int]:
    """Prompt tokens of a conversation with tools, whose messages are those of the OpenAI API. Slow for a long one.

    `guided`: a grammar or a bound of the thinking needs to know whether the answer begins with thinking. Raises
    `RequestError` and `ApiError`.
    """
    template, formats = loaded.template("messages"), loaded.text.formats
    options["tools"] = given.for_template() if given else None
    shown = for_template(messages, template, formats, loaded.text.tokenizer, given)
    tokens = loaded.chat_tokens(shown, bounded=bounded, **options)
    if not guided and (given is None or not given.is_enforced):
        return tokens
    return begin_thinking(tokens, loaded.text.tokenizer, formats, template, options.get("variables"))


async def check_grammar(service: Service, request: HttpRequest, plan: AnswerPlan) -> None:
    """Try the grammar of a plan. Raises `ApiError` 400 about its field for one that is too complex."""
    if plan.guidance is not None and plan.guidance.grammar:
        await service.grammar_checks.check(plan.guidance.grammar, tenant_of(service, request), plan.param)


def switched(template: ChatTemplate, *, thinking: bool) -> dict[str, object]:
    """The template's variables that switch thinking on or off."""
    return {name: thinking for name in SWITCHES if template.uses(name)}


def effort_variables(
    effort: str | None, template: ChatTemplate, param: str = "reasoning_effort"
) -> Mapping[str, object]:
    """An effort as the variable that the template has for it, or as a switch for thinking. Raises `ApiError`."""
    if effort is None:
        return {}
    if template.uses("reasoning_effort") and effort != "none":
        return {"reasoning_effort": effort}
    switches = switched(template, thinking=effort != "none")
    if not switches and effort != "none":
        raise unsupported(param, ["'none' (this model's chat template takes no other)"], repr(effort))
    return switches
