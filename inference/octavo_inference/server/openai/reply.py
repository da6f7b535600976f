"""The fields common to all messages of one answer, whole or in chunks."""

from __future__ import annotations

import secrets
import time
import uuid
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType
from tokenizers import Tokenizer

from octavo_inference.server.openai.requests import StreamOptions
from octavo_inference.server.openai.token_text import TokenLabels

# A chunk's text and its obfuscation together are a multiple of this many bytes.
_OBFUSCATED = 32


@dataclass(frozen=True, slots=True)
class Reply:
    """`model` is the name from the request, `created` Unix time.

    `logprobs` and `token_ids` are true if the request asked for them. `labels` names the tokens.
    """

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool
    labels: TokenLabels
    token_ids: bool = False

    @classmethod
    def new(
        cls,
        kind: str,
        model: str,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        token_ids: bool = False,
        tokens_as_ids: bool = False,
    ) -> Reply:
        """Create a reply with a unique id. Clients choose request ids, so concurrent requests may share one."""
        labels = TokenLabels(tokenizer, tokens_as_ids)
        name = f"{kind}-{uuid.uuid4().hex}"
        return cls(name, int(time.time()), model, tokenizer, logprobs, labels, token_ids)

    def ids(self, tokens: list[int]) -> list[int] | UnsetType:
        """These token ids, if the request asked for them."""
        return tokens if self.token_ids else UNSET


@dataclass(frozen=True, slots=True)
class StreamExtras:
    """What a stream has besides its text: token counts at its end, in every chunk, and obfuscation."""

    usage: bool = False
    running_usage: bool = False
    obfuscation: bool = False

    @classmethod
    def of(cls, options: StreamOptions | None) -> StreamExtras:
        """What the request asks for."""
        if options is None:
            return cls()
        usage = bool(options.include_usage)
        return cls(usage, bool(options.continuous_usage_stats), bool(options.include_obfuscation))

    @property
    def own_chunks(self) -> bool:
        """True if chunks differ from each other in more than their text."""
        return self.running_usage or self.obfuscation


def obfuscation(text: str) -> str:
    """Random characters that hide the length of a chunk's text: at least one, up to the next multiple of 32 bytes."""
    length = len(msgspec.json.encode(text)) - 2
    return secrets.token_urlsafe(_OBFUSCATED)[: _OBFUSCATED - length % _OBFUSCATED]
