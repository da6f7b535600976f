"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.answers.plan import AnswerPlan, can_bound_thinking, plan
from octavo_inference.answers.tools import Tools
from octavo_inference.core.request import SamplingParams
from octavo_inference.grammar.structured_outputs import Constraint
from octavo_inference.server import json_body
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation, Piece
from octavo_inference.server.http import EventStream, json_unless_gone, without_silence
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.chat_parts import ChatStyle
from octavo_inference.server.openai.chat_stream import ChatChunks, chat_events, piece_logprobs, prompt_scores
from octavo_inference.server.openai.conversation import echoed, template_messages, template_options
from octavo_inference.server.openai.reply import Reply, StreamExtras
from octavo_inference.server.openai.requests import ChatRequest
from octavo_inference.server.openai.responses import ChatChoice, ChatMessage, ChatResponse, Usage
from octavo_inference.server.openai.tools import tools_of
from octavo_inference.server.planning import check_grammar, prompt_tokens
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.refusals import unsupported
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.structured_output import requested

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Prepared:
    tokens: list[int]
    sampling: SamplingParams
    plan: AnswerPlan


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    """Answer a conversation, whole or as a stream."""
    body = await json_body.read(request, ChatRequest)
    loaded = await service.require_generator(body.model)
    style = ChatStyle(echoed(body), bool(body.functions), body.include_reasoning is not False)
    [prepared] = await service.tokenise(request, [lambda: _prepared(body, loaded)])
    await check_grammar(service, request, prepared.plan)
    reply = Reply.new(
        "chatcmpl",
        body.model,
        loaded.text.tokenizer,
        logprobs=bool(body.logprobs),
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
    prompts = engine_requests(
        service,
        request,
        loaded,
        body,
        reply.id,
        [prepared.tokens],
        [prepared.sampling],
        guidance=prepared.plan.guidance,
    )
    headers = await prompt_headers(service, request, loaded, prompts)
    plain = prepared.plan.is_plain
    generation = service.generate(request, loaded, prompts, None if plain else prepared.plan)
    if body.stream:
        chunks = ChatChunks(generation, reply, style, StreamExtras.of(body.stream_options), is_plain=plain)
        events = chat_events(generation, chunks)
        return EventStream(events if plain else without_silence(events), headers)
    return await json_unless_gone(request.receive, _whole(generation, reply, style), headers)


def _prepared(body: ChatRequest, loaded: Loaded) -> _Prepared:
    """Prompt tokens, sampling parameters and the plan of the answers; for a text thread."""
    wanted, logprobs = body.answer_tokens, _logprobs(body)
    requests.check(body)
    tools = tools_of(body)
    constraint = requested(body.response_format, body.structured_outputs)
    tokens = chat_prompt(body, loaded, tools, constraint)
    tokens = loaded.truncated(tokens, body.truncate_prompt_tokens, wanted)
    requests.check_prompt_logprobs([len(tokens)], body.prompt_logprobs, "prompt_logprobs")
    tokenizer, formats, budget = loaded.text.tokenizer, loaded.text.formats, body.thinking_token_budget
    if budget is not None and not can_bound_thinking(tokens, tokenizer, formats):
        supported = "null (leave it out: this model's chat template does not begin any thinking)"
        raise unsupported("thinking_token_budget", [supported])
    planned = plan(tokens, tokenizer, formats, tools, constraint, thinking_budget=budget)
    sampling = requests.sampling(
        body,
        max_tokens=loaded.answer_length(len(tokens), wanted, None, "messages"),
        logprobs=logprobs,
        vocab_size=loaded.vocab_size,
        bad_words=requests.bad_words(body, loaded.text.tokenizer),
        prompt_logprobs=body.prompt_logprobs,
    )
    return _Prepared(tokens, sampling, planned)


def chat_prompt(
    body: ChatRequest, loaded: Loaded, tools: Tools | None, constraint: Constraint | None = None
) -> list[int]:
    """The prompt's tokens. Slow for a long conversation."""
    return prompt_tokens(
        loaded,
        template_messages(body.messages),
        tools,
        bounded=body.truncate_prompt_tokens is None,
        guided=constraint is not None or body.thinking_token_budget is not None,
        **template_options(body, loaded.template("messages")),
    )


async def _whole(generation: Generation, reply: Reply, style: ChatStyle) -> bytes:
    with generation:
        answers = await generation.answers()
    choices = [_choice(index, answer, generation, reply, style) for index, answer in enumerate(answers)]
    return _encode(
        ChatResponse(
            reply.id,
            reply.created,
            reply.model,
            choices,
            Usage.of(generation.counts),
            prompt_token_ids=reply.ids(generation.prompts[0].tokens),
            prompt_logprobs=prompt_scores(generation, reply),
        )
    )


def _choice(index: int, answer: Piece, generation: Generation, reply: Reply, style: ChatStyle) -> ChatChoice:
    message = ChatMessage(style.head + answer.text)
    reason: str = answer.finish_reason or "stop"
    if generation.readers:
        reader = generation.readers[index]
        message, reason = style.message(reader), style.finish_reason(reason, reader)
    return ChatChoice(
        index=index,
        message=message,
        logprobs=piece_logprobs(reply, answer),
        finish_reason=reason,
        stop_reason=answer.stop_reason,
        token_ids=reply.ids(answer.tokens),
    )


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
