"""A format of tool calls: how a model writes them, and the grammar that makes it write them so."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from octavo_inference.chat_format.call_parser import Block, CallParser
from octavo_inference.chat_format.events import AnswerParser
from octavo_inference.chat_format.lark import Rules
from octavo_inference.chat_format.past_calls import PastCall, PastResult, same_id, tagged_result
from octavo_inference.chat_format.tools import ToolChoice, ToolSpec

NO_TOKENS: Mapping[str, int] = {}
MAX_CALLS = 128
_TAG = re.compile(r"</?[\w:]+>")
LINE_BREAKS = r"/\n{0,2}/"


@dataclass(frozen=True, slots=True)
class CallLayout:
    """How calls are written: `opening` call (`between` call)* `closing`.

    `trigger` is the beginning of `opening` by which a block is known in text. Without one, calls are known by being all
    of the answer; then `no_call` is a Lark expression of the answers that are none. `before` and `before_answer` are
    Lark expressions of what precedes the calls, and an answer that is none. `barred` are further texts that begin calls
    for the parser, which free text does not hold therefore. `write` and `result` write a call and a result of an
    earlier turn, for chat templates without tools.
    """

    opening: str
    between: str
    closing: str
    write: Callable[[PastCall], str]
    result: Callable[[PastResult], str] = tagged_result
    trigger: str = ""
    no_call: str = ""
    before: str = ""
    before_answer: str = ""
    barred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format of tool calls.

    `markers` are texts of special tokens that must stay visible to the parser, so the detokenizer must not skip them.
    Where `special` is asked for, it is those of the markers that are tokens of their own in the model's vocabulary,
    with their ids (`special_tokens`): grammars name them by id. Where they begin no call, a parser does not show them
    as text, other than tags (`<tool_call>`), which vocabularies have for text, too.
    """

    name: str
    markers: tuple[str, ...]
    parse: Callable[[Sequence[ToolSpec], Collection[str]], AnswerParser]
    """A parser for tools; the markers that it hides."""
    layout: Callable[[Mapping[str, int]], CallLayout]
    call: Callable[[Rules, ToolSpec], str]
    """One call as a Lark expression, with rules added."""
    prompt: Callable[[Sequence[ToolSpec]], str] | None = None
    own_id: Callable[[str, str, int], str] = same_id
    """The id of a call in the form that the model writes: from any id, the function's name, and the call's number."""

    def parser(self, tools: Sequence[ToolSpec], special: Mapping[str, int] = NO_TOKENS) -> AnswerParser:
        """A parser for one answer. Calls of functions that are not among `tools` stay text."""
        return self.parse(tools, [text for text in self.markers if text in special and not _TAG.fullmatch(text)])

    def grammar(
        self,
        tools: Sequence[ToolSpec],
        choice: ToolChoice,
        *,
        parallel: bool,
        answer: str | None = None,
        behind_thinking: bool = False,
        special: Mapping[str, int] = NO_TOKENS,
    ) -> str | None:
        """Lark text (llguidance) that enforces the choice, or None where there is nothing to enforce.

        `required` and `named`: at least one call, of an allowed tool, with arguments of its schema; more than one only
        with `parallel`, and then at most `MAX_CALLS` in a block. `auto`: free text, in which each block of calls is
        one, once its trigger appears; enforced with a strict tool, with one that is not allowed, or without `parallel`.
        Without `parallel`, the answer ends behind the call. `answer` is a Lark expression that the text must be where
        the answer is no call (`auto`). `behind_thinking`: the grammar applies behind a thinking, so that line breaks
        may come first.

        Raises `RequestError` for a strict tool with a schema that this format cannot enforce.
        """
        allowed = [tool for tool in tools if tool.name in choice.names]
        free = choice.mode == "auto"
        if free and parallel and answer is None and len(allowed) == len(tools) and not any(t.strict for t in tools):
            return None
        rules = Rules(special)
        layout = self.layout(special)
        enforced = [t if t.strict or not free else ToolSpec(t.name) for t in allowed]
        call = rules.add("call", *(self.call(rules, tool) for tool in enforced))
        more = f"({rules.literal(layout.between)} {call}){{0,{MAX_CALLS - 1}}}" if parallel else ""
        behind = f"{call} {more} {rules.literal(layout.closing)}"
        space = LINE_BREAKS if behind_thinking else ""
        block = f"{space} {layout.before} {rules.literal(layout.opening)} {behind}"
        if not free:
            return rules.text(block)
        if answer is not None:
            return rules.text(f"{block} | {space} {layout.before_answer} {answer}")
        if not layout.trigger:
            return rules.text(f"{block} | {layout.no_call}")
        behind = f"{rules.literal(layout.opening.removeprefix(layout.trigger))} {behind}"
        barred = layout.barred
        if layout.trigger in special:
            # Spelled out in other tokens, it would begin a call, too.
            barred = (*barred, layout.trigger)
            head = f"TEXT {rules.literal(layout.trigger)}"
        else:
            head = rules.add("head", f"TEXT {rules.literal(layout.trigger)}", options="[lazy]")
        block = rules.add("calls", f"{head} {behind}")
        return rules.text(f"{block}* TEXT" if parallel else f"{block} | TEXT", barred)

    def written(self, calls: Sequence[PastCall], special: Mapping[str, int] = NO_TOKENS) -> str:
        """The calls of one answer, as the model writes them."""
        layout = self.layout(special)
        return layout.opening + layout.between.join(map(layout.write, calls)) + layout.closing

    def system_prompt(self, tools: Sequence[ToolSpec]) -> str | None:
        """What to tell the model of its tools where the chat template does not; None for a format without it."""
        return self.prompt(tools) if self.prompt is not None else None


def blocks(
    block: Block, starts: tuple[str, ...], bare: str = ""
) -> Callable[[Sequence[ToolSpec], Collection[str]], AnswerParser]:
    """Parsers of text with blocks of calls: see `CallParser`."""
    return lambda tools, hidden: CallParser(tools, block, starts, bare, hidden)


def special_tokens(markers: Collection[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Those of the markers that are tokens of their own in a vocabulary, and no text for a grammar, with their ids.

    For llguidance, these are the added tokens that are special, or in angle brackets.
    """
    added = tokenizer.get_added_tokens_decoder()
    return {
        token.content: index
        for index, token in added.items()
        if token.content in markers and (token.special or (token.content[0] == "<" and token.content[-1] == ">"))
    }
