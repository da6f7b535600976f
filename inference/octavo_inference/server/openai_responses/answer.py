"""Collects an answer that is one text, and makes the response of an answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from octavo_inference.core.request import DEADLINE
from octavo_inference.server.errors import ApiError
from octavo_inference.server.generation import TokenCounts
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.items import AnswerText, ItemStatus, MessageItem, OutputItem
from octavo_inference.server.openai_responses.resource import (
    IncompleteDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)
from octavo_inference.tokenizer.detokenizer import Delta


@dataclass(slots=True)
class Answer:
    """The answer so far. `draft` is the response before its first token, `deltas` counts the events of its text."""

    draft: ResponseObject
    item_id: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[ChatLogprob] = field(default_factory=list)
    deltas: int = 0
    last: Delta | None = None

    def add(self, piece: Delta, logprobs: list[ChatLogprob]) -> None:
        """Append a piece of the answer."""
        self.texts.append(piece.text)
        self.logprobs += logprobs
        if piece.finish_reason is not None:
            self.last = piece

    def items(self, status: ItemStatus) -> list[OutputItem]:
        """The message of the answer. One that ended without text is empty, unless it failed."""
        return [self.item(status)]

    @property
    def is_empty(self) -> bool:
        """True before the first piece."""
        return not self.texts

    def item(self, status: ItemStatus) -> MessageItem:
        """The message of the answer."""
        return MessageItem(self.item_id, "assistant", [AnswerText("".join(self.texts), [], self.logprobs)], status)


class AnswerItems(Protocol):
    """An answer so far. `last` is its last piece, if that has come."""

    draft: ResponseObject
    last: Delta | None

    @property
    def is_empty(self) -> bool:
        """True before the first piece."""
        ...

    def items(self, status: ItemStatus) -> list[OutputItem]:
        """The items of the answer; the last one has this status."""
        ...


def finished(answer: AnswerItems, counts: TokenCounts) -> ResponseObject:
    """The response after the last piece: completed, or incomplete with the reason."""
    last = answer.last
    if last is None or last.finish_reason != "length":
        return _ended(answer, "completed", "completed", counts)
    reason = IncompleteDetails("deadline" if last.stop_reason == DEADLINE else "max_output_tokens")
    return msgspec.structs.replace(_ended(answer, "incomplete", "incomplete", counts), incomplete_details=reason)


def failed(answer: AnswerItems, error: ApiError, counts: TokenCounts) -> ResponseObject:
    """The response after a failure, with the items so far."""
    failure = ResponseFailure("invalid_prompt" if error.status == 400 else "server_error", error.message)
    return msgspec.structs.replace(_ended(answer, "failed", "incomplete", counts), error=failure)


def cancelled(answer: AnswerItems, counts: TokenCounts) -> ResponseObject:
    """The response after its cancellation, with the items so far."""
    return _ended(answer, "cancelled", "incomplete", counts)


def _ended(answer: AnswerItems, status: Status, item_status: ItemStatus, counts: TokenCounts) -> ResponseObject:
    has_output = status in {"completed", "incomplete"} or not answer.is_empty
    return msgspec.structs.replace(
        answer.draft,
        status=status,
        completed_at=int(time.time()) if status == "completed" else None,
        output=answer.items(item_status) if has_output else [],
        usage=ResponseUsage.of(counts),
    )
