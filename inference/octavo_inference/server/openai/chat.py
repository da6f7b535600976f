"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.core.request import SamplingParams
from octavo_inference.grammar.structured_outputs import Constraint
from octavo_inference.server import json_body, structured_output
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_unless_gone
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.conversation import echoed, template_messages, template_options
from octavo_inference.server.openai.reply import Reply, StreamExtras, obfuscation
from octavo_inference.server.openai.requests import ChatRequest
from octavo_inference.server.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    ChunkChoice,
    PromptLogprobs,
    Usage,
    chat_logprobs,
    prompt_logprobs,
)
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template
from octavo_inference.tokenizer.detokenizer import Delta

_encode = msgspec.json.Encoder().encode


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    """Answer a conversation, whole or as a stream."""
    body = await json_body.read(request, ChatRequest)
    loaded = service.require(body.model)
    head = echoed(body)
    [(tokens, sampling, constraint)] = await service.tokenise(request, [lambda: _prepared(body, loaded)])
    guidance = await structured_output.guidance(service, request, constraint)
    reply = Reply.new(
        "chatcmpl",
        body.model,
        loaded.text.tokenizer,
        logprobs=bool(body.logprobs),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
    prompts = engine_requests(service, request, body, reply.id, [tokens], [sampling], guidance)
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts)
    if body.stream:
        chunks = _ChatChunks(generation, reply, head, StreamExtras.of(body.stream_options))
        return EventStream(_events(generation, chunks), headers)
    return await json_unless_gone(request.receive, _whole(generation, reply, head), headers)


def _prepared(body: ChatRequest, loaded: Loaded) -> tuple[list[int], SamplingParams, Constraint | None]:
    """Prompt tokens, sampling parameters and what the answer must be; for a text thread."""
    wanted, logprobs = body.answer_tokens, _logprobs(body)
    requests.check(body)
    messages = template_messages(body.messages)
    options = template_options(body, loaded.template("messages"))
    limit = body.truncate_prompt_tokens
    tokens = loaded.chat_tokens(messages, bounded=limit is None, **options)
    tokens = loaded.truncated(tokens, limit, wanted)
    requests.check_prompt_logprobs([len(tokens)], body.prompt_logprobs, "prompt_logprobs")
    sampling = requests.sampling(
        body,
        max_tokens=loaded.answer_length(len(tokens), wanted, None, "messages"),
        logprobs=logprobs,
        vocab_size=loaded.info.vocab_size,
        bad_words=requests.bad_words(body, loaded.text.tokenizer),
        prompt_logprobs=body.prompt_logprobs,
    )
    return tokens, sampling, structured_output.requested(body.response_format, body.structured_outputs)


async def _whole(generation: Generation, reply: Reply, head: str) -> bytes:
    with generation:
        answers = await generation.answers()
    choices = [
        ChatChoice(
            index=index,
            message=ChatMessage(head + answer.text),
            logprobs=_piece_logprobs(reply, answer),
            finish_reason=answer.finish_reason or "stop",
            stop_reason=answer.stop_reason,
            token_ids=reply.ids(answer.tokens),
        )
        for index, answer in enumerate(answers)
    ]
    return _encode(
        ChatResponse(
            reply.id,
            reply.created,
            reply.model,
            choices,
            Usage.of(generation.counts),
            prompt_token_ids=reply.ids(generation.prompts[0].tokens),
            prompt_logprobs=_prompt_logprobs(generation, reply),
        )
    )


async def _events(generation: Generation, chunks: _ChatChunks) -> AsyncGenerator[bytes | None]:
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


class _ChatChunks:
    """The events of a chat stream. Those that differ in their text only are filled into a template."""

    def __init__(self, generation: Generation, reply: Reply, head: str, extras: StreamExtras) -> None:
        self._generation = generation
        self._reply = reply
        self._head = head
        self._extras = extras
        self._own_chunks = reply.token_ids or extras.own_chunks
        self._plain = [
            template(self._chunk([ChunkChoice(index, ChatDelta(content=MARK))])) for index in range(generation.choices)
        ]

    def opening(self) -> list[bytes]:
        """The role of each choice, and the text that its answer continues."""
        prompt = self._reply.ids(self._generation.prompts[0].tokens)
        scores = _prompt_logprobs(self._generation, self._reply)
        events = []
        for index in range(self._generation.choices):
            role = ChunkChoice(index, ChatDelta("assistant", ""))
            events.append(event(self._chunk([role], prompt_token_ids=prompt, prompt_logprobs=scores)))
            prompt = scores = UNSET
        if self._head:
            heads = (ChunkChoice(index, ChatDelta(content=self._head)) for index in range(self._generation.choices))
            events += [event(self._chunk([head])) for head in heads]
        return events

    def of(self, index: int, piece: Delta) -> list[bytes]:
        """A piece of a choice: its text, and apart from it the reason for its end."""
        events = []
        if piece.logprobs is not None or self._own_chunks:
            if piece.text or piece.tokens:
                logprobs, ids = _piece_logprobs(self._reply, piece), self._reply.ids(piece.tokens)
                choice = ChunkChoice(index, ChatDelta(content=piece.text), logprobs, token_ids=ids)
                events.append(event(self._chunk([choice])))
        elif piece.text:
            events.append(self._plain[index](piece.text))
        if piece.finish_reason is not None:
            last = ChunkChoice(index, ChatDelta(), finish_reason=piece.finish_reason, stop_reason=piece.stop_reason)
            events.append(event(self._chunk([last])))
        return events

    def closing(self) -> bytes:
        """The token counts, if the request asked for them."""
        return event(self._chunk([], usage=Usage.of(self._generation.counts))) if self._extras.usage else b""

    def _chunk(self, choices: list[ChunkChoice], **fields: Any) -> bytes:
        extras, reply = self._extras, self._reply
        if extras.running_usage:
            fields["usage"] = Usage.of(self._generation.counts)
        elif extras.usage:
            fields.setdefault("usage", None)
        if extras.obfuscation and choices:
            fields["obfuscation"] = obfuscation(choices[0].delta.content or "")
        return _encode(ChatChunk(reply.id, reply.created, reply.model, choices, **fields))


def _piece_logprobs(reply: Reply, piece: Delta) -> ChatLogprobs | None:
    if not reply.logprobs:
        return None
    return ChatLogprobs(chat_logprobs(reply.labels, piece.tokens, piece.logprobs or []))


def _prompt_logprobs(generation: Generation, reply: Reply) -> PromptLogprobs | UnsetType:
    found = generation.prompt_logprobs.get(generation.prompts[0].id)
    return UNSET if found is None else prompt_logprobs(reply.labels, generation.prompts[0].tokens, found)


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
