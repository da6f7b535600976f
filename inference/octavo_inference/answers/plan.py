"""What the answers to a prompt must obey, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer

from octavo_inference.answers.formats import AnswerFormats
from octavo_inference.answers.reader import AnswerReader
from octavo_inference.answers.tools import Tools
from octavo_inference.chat_format.answer import answer_parser
from octavo_inference.chat_format.reasoning import ReasoningFormat
from octavo_inference.chat_format.tool_format import ToolFormat, special_tokens
from octavo_inference.common.errors import RequestError
from octavo_inference.core.request import Guidance
from octavo_inference.grammar.structured_outputs import Constraint

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate

# Tokens at the end of a prompt among which the start or the end of thinking is looked for.
_TAIL = 24


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How the answers to one prompt are read: by default as one text. `thinking`: they begin inside the thinking.

    `special` are the special tokens that the parser reads, by text.
    """

    tools: Tools | None = None
    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    thinking: bool = False
    guidance: Guidance | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    param: str = "tools"
    """The field of the request that the grammar comes from."""

    @property
    def is_plain(self) -> bool:
        """True if an answer is one text."""
        return self.tool_format is None and self.reasoning is None

    @property
    def shown(self) -> frozenset[int]:
        """The ids of special tokens that the text must show to the parser."""
        return frozenset(self.special.values())

    def reader(self) -> AnswerReader:
        """A reader of one answer."""
        specs = self.tools.callable if self.tools else ()
        parser = answer_parser(self.tool_format, self.reasoning, specs, thinking=self.thinking, special=self.special)
        parallel = self.tools is None or self.tools.parallel
        if self.tool_format is None:
            return AnswerReader(parser, parallel=parallel)
        return AnswerReader(parser, self.tool_format.markers, parallel, self.tool_format.own_id)


def begin_thinking(
    tokens: list[int],
    tokenizer: Tokenizer,
    formats: AnswerFormats,
    template: ChatTemplate,
    variables: Mapping[str, object] | None,
) -> list[int]:
    """The prompt with the start of thinking, if the template leaves that to the model and asks it to think.

    A grammar and a bound of the thinking need to know where it begins.
    """
    reasoning = formats.reasoning
    if reasoning is None or _state(tokens, tokenizer, reasoning) != "undecided" or not _asked(template, variables):
        return tokens
    return tokens + marker_ids(tokenizer, reasoning.start)


def plan(
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    formats: AnswerFormats,
    tools: Tools | None,
    constraint: Constraint | None = None,
    *,
    thinking_budget: int | None = None,
) -> AnswerPlan:
    """The plan of a prompt. With tools, the constraint is that of an answer without a call. Raises `RequestError`."""
    reasoning = formats.reasoning
    thinking = reasoning is not None and _state(tokens, tokenizer, reasoning) == "open"
    special = special_tokens(reasoning.markers if reasoning else (), tokenizer)
    grammar = constraint.grammar if constraint else None
    found = None
    if tools is not None:
        answer = _expression(constraint) if constraint else None
        form = formats.enforced_tools
        marks = special_tokens(form.markers, tokenizer)
        grammar = form.grammar(tools.specs, tools.choice, parallel=tools.parallel, answer=answer, special=marks)
        found = formats.tools if grammar is None else form
        special |= marks if found else {}
    after = tuple(marker_ids(tokenizer, reasoning.end)) if reasoning is not None and thinking else ()
    guidance = None
    if grammar or (thinking_budget is not None and after):
        guidance = Guidance(grammar=grammar or "", after=after, thinking_budget=thinking_budget if after else None)
    param = "tools" if tools is not None or constraint is None else constraint.param
    return AnswerPlan(tools, found, reasoning, thinking, guidance, special, param)


def _expression(constraint: Constraint) -> str:
    if constraint.expression is None:
        raise RequestError(
            f"{constraint.param}: a grammar cannot be combined with tools; give a schema, a regular expression or a "
            "choice, or leave out the tools.",
            constraint.param,
        )
    return constraint.expression


def can_bound_thinking(tokens: Sequence[int], tokenizer: Tokenizer, formats: AnswerFormats) -> bool:
    """True if it is known where the thinking of an answer begins, or that there is none."""
    return formats.reasoning is not None and _state(tokens, tokenizer, formats.reasoning) != "undecided"


def marker_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a marker."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _state(
    tokens: Sequence[int], tokenizer: Tokenizer, reasoning: ReasoningFormat
) -> Literal["open", "closed", "undecided"]:
    """Whether the prompt ends inside the thinking, behind it, or without either mark."""
    tail = tokenizer.decode(list(tokens[-_TAIL:]), skip_special_tokens=False).rstrip()
    if tail.endswith(reasoning.start):
        return "open"
    return "closed" if tail.endswith(reasoning.end) else "undecided"


def _asked(template: ChatTemplate, variables: Mapping[str, object] | None) -> bool:
    """True if the template asks the model to think. With `enable_thinking` it does unless that is false."""
    given = variables or {}
    if template.uses("enable_thinking"):
        return given.get("enable_thinking") is not False
    return template.uses("thinking") and bool(given.get("thinking"))
