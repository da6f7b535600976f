"""Tokenizer, chat template and formats of answers: those of the model, and of adapters that have others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from octavo_inference.answers.formats import AnswerFormats, answer_formats
from octavo_inference.checkpoints.peft_config import read_adapter_config
from octavo_inference.common.errors import ModelError
from octavo_inference.config.engine import EngineSettings, PoolingName, RelevanceName
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_protocol.base_models import is_other_base

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate

log = logging.getLogger("octavo.server")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Tokenizer and chat template of the model, without its weights. If `template` is None, there is no chat.

    `special_tokens` are those with a role, such as `eos_token`, by transformers' name of the role.
    `pooling` is that of its embeddings, None for the model's own; `normalized`: they have length 1. `relevance` is the
    rule of /score and /rerank.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    tokenizer_class: str = "PreTrainedTokenizerFast"
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    pooling: PoolingName | None = None
    normalized: bool = True
    relevance: RelevanceName = "embedding"
    formats: AnswerFormats = field(default_factory=AnswerFormats)
    """The formats of tool calls and of thinking."""

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters has at least n divided by this number of tokens."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)


@dataclass(frozen=True, slots=True)
class ServedText:
    """That of an adapter. `ends`: ids that end its answers, besides the model's."""

    model: ServedModel
    longest_token: int
    ends: tuple[int, ...]


def warn_of_other_base(folder: Path, served: Iterable[str]) -> None:
    """Log that an adapter names another base model than the `served` one. Its matrices may fit nevertheless."""
    try:
        base = read_adapter_config(folder).base
    except ModelError:
        return  # the engine says so
    if is_other_base(base, served):
        log.warning("%s: by its own account this adapter was trained on %s: its answers may be poor", folder, base)


def served_text(
    folder: Path, model: ServedModel, assets: TokenizerAssets, settings: EngineSettings, vocab: int, added: int
) -> ServedText | None:
    """That of an adapter, if its folder has another tokenizer or chat template than the model with these assets.

    Slow. `vocab`: ids of the model; `added`: tokens that an adapter may add. Raises `ModelError` for files that cannot
    be used.
    """
    from octavo_inference.tokenizer.adapter_files import read_adapter_files  # noqa: PLC0415
    from octavo_inference.tokenizer.chat_template import load_chat_template  # noqa: PLC0415

    own = read_adapter_files(folder, assets, vocab, added)
    if own is None:
        return None
    template = own.template or load_chat_template(own.assets, settings.chat_template, settings.model)
    text = replace(
        model,
        tokenizer=own.assets.tokenizer,
        template=template,
        special_tokens=own.assets.special_tokens,
        formats=answer_formats(
            None if template is None else template.source, settings.tool_call_parser, settings.reasoning_parser
        ),
    )
    return ServedText(text, text.longest_token, own.ends)
