"""The response at the end of its answer."""

from __future__ import annotations

import time

import msgspec

from octavo_inference.core.request import DEADLINE
from octavo_inference.server.errors import ApiError
from octavo_inference.server.generation import TokenCounts
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.items import ItemStatus
from octavo_inference.server.openai_responses.resource import (
    IncompleteDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)


def finished(answer: Answer, counts: TokenCounts) -> ResponseObject:
    """The response after the last piece: completed, or incomplete with the reason."""
    last = answer.last
    if last is None or last.finish_reason != "length":
        return _ended(answer, "completed", "completed", counts)
    reason = IncompleteDetails("deadline" if last.stop_reason == DEADLINE else "max_output_tokens")
    return msgspec.structs.replace(_ended(answer, "incomplete", "incomplete", counts), incomplete_details=reason)


def failed(answer: Answer, error: ApiError, counts: TokenCounts) -> ResponseObject:
    """The response after a failure, with the items so far."""
    failure = ResponseFailure("invalid_prompt" if error.status == 400 else "server_error", error.message)
    return msgspec.structs.replace(_ended(answer, "failed", "incomplete", counts), error=failure)


def cancelled(answer: Answer, counts: TokenCounts) -> ResponseObject:
    """The response after its cancellation, with the items so far."""
    return _ended(answer, "cancelled", "incomplete", counts)


def _ended(answer: Answer, status: Status, item_status: ItemStatus, counts: TokenCounts) -> ResponseObject:
    has_output = status in {"completed", "incomplete"} or not answer.is_empty
    return msgspec.structs.replace(
        answer.draft,
        status=status,
        completed_at=int(time.time()) if status == "completed" else None,
        output=answer.items(item_status) if has_output else [],
        usage=ResponseUsage.of(counts),
    )
