"""The blocks of an answer, whole and as events of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo_inference.answers.history import parsed
from octavo_inference.chat_format.events import CallArguments, CallStart, Event, Reasoning, Text, continues
from octavo_inference.server.anthropic.responses import (
    SIGNATURE,
    AnswerBlock,
    AnyAnswerBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextDelta,
    ThinkingAnswerBlock,
    ThinkingDelta,
    ToolUseAnswerBlock,
)
from octavo_inference.server.sse import event

_encode = msgspec.json.Encoder().encode


def answer_blocks(parts: Sequence[Event], *, shows_thinking: bool) -> list[AnyAnswerBlock]:
    """The blocks of a complete answer, in its order."""
    blocks: list[tuple[Event, list[str]]] = []
    for part in parts:
        if isinstance(part, CallStart):
            blocks.append((part, []))
        elif blocks and continues(blocks[-1][0], part):
            blocks[-1][1].append(part.text)
        elif shows_thinking or not isinstance(part, Reasoning):
            blocks.append((part, [part.text]))
    return [_block(first, "".join(texts)) for first, texts in blocks]


class BlockWriter:
    """Writes the events of an answer's blocks."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._open: Event | None = None
        self._index = -1

    def write(self, parts: Sequence[Event]) -> list[bytes]:
        """The events of parts."""
        events: list[bytes] = []
        for part in parts:
            if isinstance(part, Reasoning) and not self._shows_thinking:
                continue
            if self._open is None or not continues(self._open, part):
                events += self.close()
                self._index += 1
                self._open = part
                events.append(event(_encode(ContentBlockStart(self._index, _empty(part))), "content_block_start"))
            if not isinstance(part, CallStart):
                events.append(self._delta(_delta(part)))
        return events

    def close(self) -> list[bytes]:
        """The end of the open block, if there is one."""
        if self._open is None:
            return []
        signed = [self._delta(SignatureDelta(SIGNATURE))] if isinstance(self._open, Reasoning) else []
        self._open = None
        return [*signed, event(_encode(ContentBlockStop(self._index)), "content_block_stop")]

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> bytes:
        return event(_encode(ContentBlockDelta(self._index, delta)), "content_block_delta")


def _delta(part: Text | Reasoning | CallArguments) -> TextDelta | ThinkingDelta | InputJsonDelta:
    if isinstance(part, Text):
        return TextDelta(part.text)
    return ThinkingDelta(part.text) if isinstance(part, Reasoning) else InputJsonDelta(part.text)


def _block(first: Event, text: str) -> AnyAnswerBlock:
    if isinstance(first, CallStart):
        found = parsed(text)
        return ToolUseAnswerBlock(first.id or "", first.name, found if isinstance(found, dict) else {})
    return ThinkingAnswerBlock(text, SIGNATURE) if isinstance(first, Reasoning) else AnswerBlock(text)


def _empty(first: Event) -> AnyAnswerBlock:
    if isinstance(first, CallStart):
        return ToolUseAnswerBlock(first.id or "", first.name, {})
    return ThinkingAnswerBlock("", "") if isinstance(first, Reasoning) else AnswerBlock("")
