"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import json_body
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_unless_gone
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.reply import Reply
from octavo_inference.server.openai.requests import ChatRequest
from octavo_inference.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    ChunkChoice,
    Usage,
    chat_logprobs,
)
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.service import Service
from octavo_inference.server.sse import MARK, event, template
from octavo_inference.tokenizer.detokenizer import Delta

if TYPE_CHECKING:
    from octavo_inference.tokenizer.chat_template import Message

_encode = msgspec.json.Encoder().encode


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    """Answer a conversation, whole or as a stream."""
    body = await json_body.read(request, ChatRequest)
    loaded = service.require(body.model)
    wanted = _wanted_tokens(body)
    logprobs = _logprobs(body)
    messages = [_template_message(message) for message in body.messages]
    [tokens] = await service.tokenise(request, [lambda: loaded.chat_tokens(messages)])
    sampling = requests.sampling(
        body,
        max_tokens=loaded.answer_length(len(tokens), wanted, None, "messages"),
        logprobs=logprobs,
        vocab_size=loaded.info.vocab_size,
    )
    reply = Reply.new("chatcmpl", body.model, loaded.text.tokenizer, logprobs=logprobs is not None)
    prompts = engine_requests(service, request, body, reply.id, [tokens], [sampling])
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts)
    if body.stream:
        return EventStream(_events(generation, reply, include_usage=body.include_usage), headers)
    return await json_unless_gone(request.receive, _whole(generation, reply), headers)


async def _whole(generation: Generation, reply: Reply) -> bytes:
    with generation:
        answers = await generation.answers()
    choices = [
        ChatChoice(
            index=index,
            message=ChatMessage(answer.text),
            logprobs=_piece_logprobs(reply, answer),
            finish_reason=answer.finish_reason or "stop",
            stop_reason=answer.stop_reason,
        )
        for index, answer in enumerate(answers)
    ]
    return _encode(ChatResponse(reply.id, reply.created, reply.model, choices, Usage.of(generation.counts)))


async def _events(generation: Generation, reply: Reply, *, include_usage: bool) -> AsyncGenerator[bytes | None]:
    empty = None if include_usage else UNSET

    def chunk(choices: list[ChunkChoice], usage: Usage | UnsetType | None = empty) -> bytes:
        return _encode(ChatChunk(reply.id, reply.created, reply.model, choices, usage=usage))

    plain = [template(chunk([ChunkChoice(index, ChatDelta(content=MARK))])) for index in range(generation.choices)]
    with generation:
        introduced = False
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                yield None
                continue
            events = []
            if not introduced:
                introduced = True
                greetings = (ChunkChoice(index, ChatDelta("assistant", "")) for index in range(generation.choices))
                events += [event(chunk([greeting])) for greeting in greetings]
            for index, piece in ready:
                if piece.finish_reason is None and piece.logprobs is None:
                    events.append(plain[index](piece.text))
                    continue
                choice = ChunkChoice(
                    index,
                    ChatDelta(content=piece.text or None),
                    _piece_logprobs(reply, piece),
                    piece.finish_reason,
                    piece.stop_reason if piece.finish_reason else UNSET,
                )
                events.append(event(chunk([choice])))
            yield b"".join(events)
        if include_usage:
            yield event(chunk([], Usage.of(generation.counts)))


def _piece_logprobs(reply: Reply, piece: Delta) -> ChatLogprobs | None:
    if not reply.logprobs:
        return None
    return ChatLogprobs(chat_logprobs(reply.tokenizer, piece.tokens, piece.logprobs or []))


def _template_message(message: requests.Message) -> Message:
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text, **named}


def _wanted_tokens(body: ChatRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(
            f"max_tokens ({old}) and max_completion_tokens ({new}) mean the same; give one.", "max_completion_tokens"
        )
    return old if new is None else new


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
