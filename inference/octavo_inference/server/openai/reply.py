"""The fields common to all messages of one answer, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Reply:
    """`model` is the name from the request, `created` Unix time, `logprobs` whether the request asked for them."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    @classmethod
    def new(cls, kind: str, model: str, tokenizer: Tokenizer, *, logprobs: bool) -> Reply:
        """Create a reply with a unique id. Clients choose request ids, so concurrent requests may share one."""
        return cls(f"{kind}-{uuid.uuid4().hex}", int(time.time()), model, tokenizer, logprobs)
