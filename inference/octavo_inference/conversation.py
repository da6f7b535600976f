"""Conversations of `LLM.chat` and `AsyncLLM.chat`: their prompts, and the plan of the answers to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from octavo_inference.answers.formats import answer_formats
from octavo_inference.answers.history import for_template
from octavo_inference.answers.plan import AnswerPlan, begin_thinking, plan
from octavo_inference.answers.tools import Tools, described_tools
from octavo_inference.common.errors import RequestError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.request import Guidance
from octavo_inference.tokenizer.adapter_files import read_adapter_files
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_inference.tokenizer.chat_template import (
    ChatTemplate,
    Message,
    TemplateOptions,
    load_chat_template,
)
from octavo_inference.tokenizer.messages import plain_messages

Conversation = Sequence[Message]


class Conversations:
    """Makes prompts of conversations with a chat template: `template`, else that of the settings, else the model's.

    Raises `ModelError` for a template of the settings that cannot be used.
    """

    def __init__(self, assets: TokenizerAssets, settings: EngineSettings, template: ChatTemplate | None = None) -> None:
        self._assets = assets
        self._settings = settings
        self._own_template = template
        # A model's own template may be broken, and only `chat` needs it.
        if settings.chat_template is not None:
            _ = self._template

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return self._own_template or load_chat_template(
            self._assets, self._settings.chat_template, self._settings.model
        )

    def prompts(
        self,
        conversations: Sequence[Conversation],
        options: TemplateOptions,
        guidance: Guidance | None,
        *,
        tool_choice: str,
        parallel_tool_calls: bool,
    ) -> list[tuple[list[int], AnswerPlan]]:
        """The tokens of each prompt, and the plan of its answers. Slow for long ones. Raises as `LLM.chat`."""
        template = self._template
        if template is None:
            raise RequestError("this model has no chat template: give one as chat_template=FILE", "messages")
        given = [_plain(conversation) for conversation in conversations]
        tools = described_tools(options.get("tools") or (), tool_choice, parallel=parallel_tool_calls)
        if tools is not None and guidance is not None:
            raise RequestError("guidance cannot be combined with tools; give one of them", "guidance")
        return [self._prompt(messages, template, options.copy(), tools, guidance) for messages in given]

    def _prompt(
        self,
        messages: Conversation,
        template: ChatTemplate,
        options: TemplateOptions,
        tools: Tools | None,
        guidance: Guidance | None,
    ) -> tuple[list[int], AnswerPlan]:
        tokenizer = self._assets.tokenizer
        formats = answer_formats(template.source, self._settings.tool_call_parser, self._settings.reasoning_parser)
        options["tools"] = tools.for_template() if tools else None
        tokens = template.tokens(for_template(messages, template, formats, tokenizer, tools), **options)
        if tools is not None and tools.is_enforced:
            tokens = begin_thinking(tokens, tokenizer, formats, template, options.get("variables"))
        planned = plan(tokens, tokenizer, formats, tools)
        return tokens, planned if guidance is None else dataclasses.replace(planned, guidance=guidance)


@dataclass(frozen=True, slots=True)
class AdapterText:
    """How prompts and answers of an adapter are written. `ends`: ids that end its answers, besides the model's."""

    tokenizer: Tokenizer
    conversations: Conversations
    ends: tuple[int, ...] = ()


def adapter_text(
    folder: Path, model: TokenizerAssets, settings: EngineSettings, vocab: int, added: int
) -> AdapterText | None:
    """That of an adapter whose folder has a tokenizer or chat template of its own. None: it is the model's.

    Raises `ModelError` for files that cannot be used.
    """
    own = read_adapter_files(folder, model, vocab, added)
    if own is None:
        return None
    return AdapterText(own.assets.tokenizer, Conversations(own.assets, settings, own.template), own.ends)


def _plain(conversation: Conversation) -> list[Message]:
    if not all(isinstance(message, Mapping) for message in conversation):
        raise RequestError("messages: a conversation is a list of dicts with role and content", "messages")
    return plain_messages(conversation)


def one_or_more(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Normalise to a list of conversations: a list of messages is one."""
    listed: list[Conversation] = []
    single: list[Message] = []
    for entry in messages:
        if isinstance(entry, Mapping):
            single.append(entry)
        else:
            listed.append(entry)
    if single and listed:
        raise RequestError("messages mix messages and conversations: give a list of either", "messages")
    return [single] if single else listed
