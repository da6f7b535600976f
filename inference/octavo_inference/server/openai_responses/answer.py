"""Collects a generation into a response."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from octavo_inference.core.request import DEADLINE
from octavo_inference.server.errors import ApiError
from octavo_inference.server.generation import TokenCounts
from octavo_inference.server.openai.responses import ChatLogprob
from octavo_inference.server.openai_responses.items import AnswerText, ItemStatus, MessageItem
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

    def finished(self, counts: TokenCounts) -> ResponseObject:
        """The response after the last piece: completed, or incomplete with the reason."""
        if self.last is None or self.last.finish_reason != "length":
            return self._ended("completed", "completed", counts)
        reason = IncompleteDetails("deadline" if self.last.stop_reason == DEADLINE else "max_output_tokens")
        return msgspec.structs.replace(self._ended("incomplete", "incomplete", counts), incomplete_details=reason)

    def failed(self, error: ApiError, counts: TokenCounts) -> ResponseObject:
        """The response after a failure, with the text so far."""
        failure = ResponseFailure("invalid_prompt" if error.status == 400 else "server_error", error.message)
        return msgspec.structs.replace(self._ended("failed", "incomplete", counts), error=failure)

    def cancelled(self, counts: TokenCounts) -> ResponseObject:
        """The response after its cancellation, with the text so far."""
        return self._ended("cancelled", "incomplete", counts)

    def item(self, status: ItemStatus) -> MessageItem:
        """The message of the answer."""
        return MessageItem(self.item_id, "assistant", [AnswerText("".join(self.texts), [], self.logprobs)], status)

    def _ended(self, status: Status, item_status: ItemStatus, counts: TokenCounts) -> ResponseObject:
        has_output = status in {"completed", "incomplete"} or bool(self.texts)
        return msgspec.structs.replace(
            self.draft,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            output=[self.item(item_status)] if has_output else [],
            usage=ResponseUsage.of(counts),
        )
