"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server import structured_output
from octavo_inference.server.anthropic import requests
from octavo_inference.server.anthropic.requests import Conversation, CountTokensRequest, MessagesRequest
from octavo_inference.server.anthropic.responses import (
    AnswerBlock,
    AnswerMessage,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    TextDelta,
    TokenCount,
    ending,
)
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation, TokenCounts
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_response, json_unless_gone
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import Message, TemplateOptions

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Reply:
    """`shortened`: the model's context has no room for all of `max_tokens`."""

    id: str
    model: str
    shortened: bool


async def messages(service: Service, request: HttpRequest) -> Response:
    """Answer a conversation, or continue its last message, whole or as a stream."""
    body = await requests.read(request, MessagesRequest)
    loaded = service.require(body.model)
    tokens = await _prompt_tokens(service, request, loaded, body)
    room = loaded.answer_length(len(tokens), None, None, "messages")
    limit = min(body.max_tokens, room)
    sampling = requests.sampling(body, max_tokens=limit, vocab_size=loaded.info.vocab_size)
    reply = _Reply(f"msg_{uuid.uuid4().hex}", body.model, shortened=limit < body.max_tokens)
    constraint = None if body.output_config is None else await service.work(lambda: requests.constraint(body))
    guidance = await structured_output.guidance(service, request, constraint)
    prompts = engine_requests(service, request, body, reply.id, [tokens], [sampling], guidance)
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts)
    if body.stream:
        return EventStream(_events(generation, reply), headers, end=b"")
    return await json_unless_gone(request.receive, _whole(generation, reply), headers)


async def count_tokens(service: Service, request: HttpRequest) -> Response:
    """Count the prompt tokens of a conversation without answering it."""
    body = await requests.read(request, CountTokensRequest)
    tokens = await _prompt_tokens(service, request, service.require(body.model), body)
    return json_response(_encode(TokenCount(len(tokens))))


async def _prompt_tokens(service: Service, request: HttpRequest, loaded: Loaded, body: Conversation) -> list[int]:
    turns = body.turns
    if turns[-1] == ("assistant", ""):
        turns.pop()
    continued = bool(turns) and turns[-1][0] == "assistant"
    if continued and turns[-1][1][-1].isspace():
        raise invalid(
            "messages: final assistant content cannot end with trailing whitespace; remove it, because the answer "
            "begins with the whitespace it needs.",
            "messages",
        )
    prompt: list[Message] = [{"role": role, "content": text} for role, text in turns]
    options: TemplateOptions = {"add_generation_prompt": not continued, "continue_final_message": continued}
    [tokens] = await service.tokenise(request, [lambda: loaded.chat_tokens(prompt, **options)])
    return tokens


async def _whole(generation: Generation, reply: _Reply) -> bytes:
    with generation:
        [answer] = await generation.answers()
    end = ending(answer, shortened=reply.shortened)
    content = [AnswerBlock(answer.text)] if answer.text else []
    usage = MessageUsage.of(generation.counts)
    return _encode(AnswerMessage(reply.id, reply.model, content, end.stop_reason, end.stop_sequence, usage))


def _start(reply: _Reply, counts: TokenCounts) -> bytes:
    message = AnswerMessage(reply.id, reply.model, [], None, None, MessageUsage.of(counts))
    return event(_encode(MessageStart(message)), "message_start")


_BLOCK_START = event(_encode(ContentBlockStart(0, AnswerBlock(""))), "content_block_start")
_BLOCK_STOP = event(_encode(ContentBlockStop(0)), "content_block_stop")
_PING = event(_encode(Ping()), "ping")
_STOP = event(_encode(MessageStop()), "message_stop")
_more_text = template(_encode(ContentBlockDelta(0, TextDelta(MARK))), "content_block_delta")


async def _events(generation: Generation, reply: _Reply) -> AsyncGenerator[bytes | None]:
    begun = opened = False
    with generation:
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                # No event may precede message_start; a comment may.
                yield _PING if begun else None
                continue
            events = []
            if not begun:
                begun = True
                events.append(_start(reply, generation.counts))
            for _, piece in ready:
                if piece.text and not opened:
                    opened = True
                    events += [_BLOCK_START, _PING]
                if piece.text:
                    events.append(_more_text(piece.text))
                if piece.finish_reason is not None:
                    end = MessageDelta(ending(piece, shortened=reply.shortened), MessageUsage.of(generation.counts))
                    events += [_BLOCK_STOP] if opened else []
                    events += [event(_encode(end), "message_delta"), _STOP]
            yield b"".join(events)
