"""The stream of a chat completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo_inference.server.generation import Generation, Piece
from octavo_inference.server.http import KEEP_ALIVE_SECONDS
from octavo_inference.server.openai.chat_parts import ChatStyle
from octavo_inference.server.openai.reply import Reply, StreamExtras, obfuscation
from octavo_inference.server.openai.responses import (
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    PromptLogprobs,
    Usage,
    chat_logprobs,
    prompt_logprobs,
)
from octavo_inference.server.sse import MARK, event, template

_encode = msgspec.json.Encoder().encode


async def chat_events(generation: Generation, chunks: ChatChunks) -> AsyncGenerator[bytes | None]:
    """The events of a stream; None or empty while there are none."""
    with generation:
        introduced = False
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                yield None
                continue
            events = [] if introduced else chunks.opening()
            introduced = True
            for index, piece in ready:
                events += chunks.of(index, piece)
            yield b"".join(events)
        if end := chunks.closing():
            yield end


class ChatChunks:
    """The events of a chat stream. Those that differ in their text only are filled into a template.

    Without a plan of the generation, each answer is one text.
    """

    def __init__(
        self, generation: Generation, reply: Reply, style: ChatStyle, extras: StreamExtras, *, is_plain: bool
    ) -> None:
        self._generation = generation
        self._reply = reply
        self._style = style
        self._extras = extras
        self._is_plain = is_plain
        self._own_chunks = reply.token_ids or extras.own_chunks
        self._plain = [
            template(self._chunk([ChunkChoice(index, ChatDelta(content=MARK))])) for index in range(generation.choices)
        ]

    def opening(self) -> list[bytes]:
        """The role of each choice, and the text that its answer continues."""
        prompt = self._reply.ids(self._generation.prompts[0].tokens)
        scores = prompt_scores(self._generation, self._reply)
        events = []
        for index in range(self._generation.choices):
            role = ChunkChoice(index, ChatDelta("assistant", ""))
            events.append(event(self._chunk([role], prompt_token_ids=prompt, prompt_logprobs=scores)))
            prompt = scores = UNSET
        if head := self._style.head:
            heads = (ChunkChoice(index, ChatDelta(content=head)) for index in range(self._generation.choices))
            events += [event(self._chunk([choice])) for choice in heads]
        return events

    def of(self, index: int, piece: Piece) -> list[bytes]:
        """A piece of a choice: its parts, and apart from them the reason for its end."""
        events = []
        delta = self._delta(piece)
        if piece.logprobs is not None or self._own_chunks:
            if delta is not None or piece.tokens:
                logprobs, ids = piece_logprobs(self._reply, piece), self._reply.ids(piece.tokens)
                choice = ChunkChoice(index, delta or ChatDelta(content=""), logprobs, token_ids=ids)
                events.append(event(self._chunk([choice])))
        elif delta is not None:
            only_text = self._is_plain or delta == ChatDelta(content=delta.content)
            if only_text and delta.content is not None:
                events.append(self._plain[index](delta.content))
            else:
                events.append(event(self._chunk([ChunkChoice(index, delta)])))
        if piece.finish_reason is not None:
            reason: str = piece.finish_reason
            if not self._is_plain:
                reason = self._style.finish_reason(reason, self._generation.readers[index])
            last = ChunkChoice(index, ChatDelta(), finish_reason=reason, stop_reason=piece.stop_reason)
            events.append(event(self._chunk([last])))
        return events

    def closing(self) -> bytes:
        """The token counts, if the request asked for them."""
        return event(self._chunk([], usage=Usage.of(self._generation.counts))) if self._extras.usage else b""

    def _delta(self, piece: Piece) -> ChatDelta | None:
        if self._is_plain:
            return ChatDelta(content=piece.text) if piece.text else None
        return self._style.delta(piece.parts)

    def _chunk(self, choices: list[ChunkChoice], **fields: Any) -> bytes:
        extras, reply = self._extras, self._reply
        if extras.running_usage:
            fields["usage"] = Usage.of(self._generation.counts)
        elif extras.usage:
            fields.setdefault("usage", None)
        if extras.obfuscation and choices:
            fields["obfuscation"] = obfuscation(_shown(choices[0].delta))
        return _encode(ChatChunk(reply.id, reply.created, reply.model, choices, **fields))


def piece_logprobs(reply: Reply, piece: Piece) -> ChatLogprobs | None:
    """The log-probabilities of a piece, if the request asked for them."""
    if not reply.logprobs:
        return None
    return ChatLogprobs(chat_logprobs(reply.labels, piece.tokens, piece.logprobs or []))


def prompt_scores(generation: Generation, reply: Reply) -> PromptLogprobs | UnsetType:
    """The log-probabilities of the prompt, if the request asked for them."""
    found = generation.prompt_logprobs.get(generation.prompts[0].id)
    return UNSET if found is None else prompt_logprobs(reply.labels, generation.prompts[0].tokens, found)


def _shown(delta: ChatDelta) -> str:
    """The text of a delta, whose length padding hides."""
    calls = "".join(call.function.arguments for call in delta.tool_calls or ())
    function = delta.function_call.arguments if delta.function_call else ""
    return (delta.content or "") + 2 * (delta.reasoning or "") + calls + function
