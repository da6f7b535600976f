"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.answers.plan import AnswerPlan, plan
from octavo_inference.answers.tools import Tools
from octavo_inference.server.anthropic import requests
from octavo_inference.server.anthropic.answer_blocks import BlockWriter, answer_blocks
from octavo_inference.server.anthropic.conversation import template_messages
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
from octavo_inference.server.anthropic.tools import tools_of
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation, TokenCounts
from octavo_inference.server.http import (
    KEEP_ALIVE_SECONDS,
    EventStream,
    json_response,
    json_unless_gone,
    without_silence,
)
from octavo_inference.server.planning import check_grammar, prompt_tokens, switched
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.refusals import unsupported
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Reply:
    """`shortened`: the model's context has no room for all of `max_tokens`."""

    id: str
    model: str
    shortened: bool
    shows_thinking: bool


async def messages(service: Service, request: HttpRequest) -> Response:
    """Answer a conversation, or continue its last message, whole or as a stream."""
    body = await requests.read(request, MessagesRequest)
    loaded = await service.require_generator(body.model)
    [(tokens, planned)] = await service.tokenise(request, [lambda: _planned(loaded, body)])
    await check_grammar(service, request, planned)
    room = loaded.answer_length(len(tokens), None, None, "messages")
    limit = min(body.max_tokens, room)
    sampling = requests.sampling(body, max_tokens=limit, vocab_size=loaded.vocab_size)
    reply = _Reply(f"msg_{uuid.uuid4().hex}", body.model, shortened=limit < body.max_tokens, shows_thinking=body.thinks)
    prompts = engine_requests(service, request, loaded, body, reply.id, [tokens], [sampling], planned.guidance)
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts, None if planned.is_plain else planned)
    if body.stream:
        events = _plain_events(generation, reply) if planned.is_plain else _events(generation, reply)
        return EventStream(events if planned.is_plain else without_silence(events), headers, end=b"")
    return await json_unless_gone(request.receive, _whole(generation, reply), headers)


async def count_tokens(service: Service, request: HttpRequest) -> Response:
    """Count the prompt tokens of a conversation without answering it."""
    body = await requests.read(request, CountTokensRequest)
    loaded = await service.require(body.model)
    [(tokens, _)] = await service.tokenise(request, [lambda: _prompt(loaded, body)])
    return json_response(_encode(TokenCount(len(tokens))))


def _planned(loaded: Loaded, body: MessagesRequest) -> tuple[list[int], AnswerPlan]:
    """The prompt's tokens and the plan of the answer; for a text thread."""
    tokens, tools = _prompt(loaded, body)
    constraint, budget = requests.constraint(body), body.thinking_budget
    return tokens, plan(tokens, loaded.text.tokenizer, loaded.text.formats, tools, constraint, thinking_budget=budget)


def _prompt(loaded: Loaded, body: Conversation) -> tuple[list[int], Tools | None]:
    """The prompt's tokens and the tools; for a text thread."""
    tools = tools_of(body.tools, body.tool_choice)
    if body.thinks and loaded.text.formats.reasoning is None:
        raise unsupported("thinking.type", ["'disabled' (this model does not think)"])
    turns = template_messages(body)
    if turns[-1] == {"role": "assistant", "content": ""}:
        turns.pop()
    last = turns[-1] if turns else {}
    text = str(last.get("content", ""))
    continued = last.get("role") == "assistant" and bool(text) and "tool_calls" not in last
    if continued and text[-1].isspace():
        raise invalid(
            "messages: final assistant content cannot end with trailing whitespace; remove it, because the answer "
            "begins with the whitespace it needs.",
            "messages",
        )
    tokens = prompt_tokens(
        loaded,
        turns,
        tools,
        guided=body.thinking_budget is not None or body.output_config is not None,
        add_generation_prompt=not continued,
        continue_final_message=continued,
        variables=switched(loaded.template("messages"), thinking=body.thinks),
    )
    return tokens, tools


async def _whole(generation: Generation, reply: _Reply) -> bytes:
    with generation:
        [answer] = await generation.answers()
    if generation.readers:
        content = answer_blocks(answer.parts, shows_thinking=reply.shows_thinking)
    else:
        content = [AnswerBlock(answer.text)] if answer.text else []
    end = ending(answer, shortened=reply.shortened, calls=_calls(generation))
    usage = MessageUsage.of(generation.counts)
    return _encode(AnswerMessage(reply.id, reply.model, content, end.stop_reason, end.stop_sequence, usage))


def _calls(generation: Generation) -> bool:
    return any(reader.calls for reader in generation.readers)


def _start(reply: _Reply, counts: TokenCounts) -> bytes:
    message = AnswerMessage(reply.id, reply.model, [], None, None, MessageUsage.of(counts))
    return event(_encode(MessageStart(message)), "message_start")


_BLOCK_START = event(_encode(ContentBlockStart(0, AnswerBlock(""))), "content_block_start")
_BLOCK_STOP = event(_encode(ContentBlockStop(0)), "content_block_stop")
_PING = event(_encode(Ping()), "ping")
_STOP = event(_encode(MessageStop()), "message_stop")
_more_text = template(_encode(ContentBlockDelta(0, TextDelta(MARK))), "content_block_delta")


async def _events(generation: Generation, reply: _Reply) -> AsyncGenerator[bytes | None]:
    """The events of an answer with parts; empty where there are none."""
    writer = BlockWriter(shows_thinking=reply.shows_thinking)
    begun = False
    with generation:
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                yield _PING if begun else None
                continue
            events = [] if begun else [_start(reply, generation.counts), _PING]
            begun = True
            for _, piece in ready:
                events += writer.write(piece.parts)
                if piece.finish_reason is not None:
                    stop = ending(piece, shortened=reply.shortened, calls=_calls(generation))
                    end = MessageDelta(stop, MessageUsage.of(generation.counts))
                    events += [*writer.close(), event(_encode(end), "message_delta"), _STOP]
            yield b"".join(events)


async def _plain_events(generation: Generation, reply: _Reply) -> AsyncGenerator[bytes | None]:
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
