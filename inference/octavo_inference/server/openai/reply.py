"""The fields that all messages of one answer share, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Reply:
    """`model` is the name that the request used, `created` Unix time, `logprobs` whether it asked for them."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    logprobs: bool

    @classmethod
    def new(cls, kind: str, model: str, tokenizer: Tokenizer, *, logprobs: bool) -> Reply:
        """A reply with an id of its own: two requests at once may have the same request id, which clients choose."""
        return cls(f"{kind}-{uuid.uuid4().hex}", int(time.time()), model, tokenizer, logprobs)
