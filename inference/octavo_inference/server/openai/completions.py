"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.core.request import SamplingParams
from octavo_inference.server import json_body
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_unless_gone
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.reply import Reply
from octavo_inference.server.openai.requests import CompletionRequest
from octavo_inference.server.openai.responses import (
    CompletionLogprobs,
    TextChoice,
    TextResponse,
    Usage,
    completion_logprobs,
)
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template
from octavo_inference.tokenizer.detokenizer import Delta

# The OpenAI API's default for this endpoint.
DEFAULT_TOKENS = 16
_encode = msgspec.json.Encoder().encode


async def completions(service: Service, request: HttpRequest) -> Response:
    """Continue one or more prompts, whole or as a stream."""
    body = await json_body.read(request, CompletionRequest, service.check_ids)
    loaded = service.require(body.model)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of: only the value of n is supported.", "best_of")
    if body.echo and body.logprobs is not None:
        raise invalid("echo: log-probabilities of the prompt are not supported yet; leave out logprobs.", "echo")
    asked = body.prompts
    service.check_sequences(len(asked) * (body.n or 1))
    loaded.check_prompts(asked)
    tokens = await service.tokenise(request, [partial(_tokens, body, loaded, prompt) for prompt in asked])
    sampling = [_sampling(body, loaded, len(prompt)) for prompt in tokens]
    reply = Reply.new("cmpl", body.model, loaded.text.tokenizer, logprobs=body.logprobs is not None)
    prompts = engine_requests(service, request, body, reply.id, tokens, sampling)
    heads = [head for head in _heads(body, loaded) for _ in range(sampling[0].n)]
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts)
    if body.stream:
        return EventStream(_events(generation, reply, heads, include_usage=body.include_usage), headers)
    return await json_unless_gone(request.receive, _whole(generation, reply, heads), headers)


async def _whole(generation: Generation, reply: Reply, heads: list[str]) -> bytes:
    with generation:
        answers = await generation.answers()
    choices = [
        TextChoice(
            index,
            head + answer.text,
            _piece_logprobs(reply, answer, 0),
            answer.finish_reason,
            answer.stop_reason,
        )
        for index, (head, answer) in enumerate(zip(heads, answers, strict=True))
    ]
    return _encode(TextResponse(reply.id, reply.created, reply.model, choices, usage=Usage.of(generation.counts)))


async def _events(
    generation: Generation, reply: Reply, heads: list[str], *, include_usage: bool
) -> AsyncGenerator[bytes | None]:
    empty = None if include_usage else UNSET
    lengths = [0] * generation.choices

    def chunk(choices: list[TextChoice], usage: Usage | UnsetType | None = empty) -> bytes:
        return _encode(TextResponse(reply.id, reply.created, reply.model, choices, usage=usage))

    plain = [template(chunk([TextChoice(index, MARK)])) for index in range(generation.choices)]
    with generation:
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                yield None
                continue
            events = []
            for index, piece in ready:
                head = "" if lengths[index] else heads[index]
                text = head + piece.text
                if piece.finish_reason is None and piece.logprobs is None:
                    events.append(plain[index](text))
                else:
                    choice = TextChoice(
                        index,
                        text,
                        _piece_logprobs(reply, piece, lengths[index]),
                        piece.finish_reason,
                        piece.stop_reason if piece.finish_reason else UNSET,
                    )
                    events.append(event(chunk([choice])))
                lengths[index] += len(text)
            yield b"".join(events)
        if include_usage:
            yield event(chunk([], Usage.of(generation.counts)))


def _piece_logprobs(reply: Reply, piece: Delta, offset: int) -> CompletionLogprobs | None:
    if not reply.logprobs:
        return None
    return completion_logprobs(reply.tokenizer, piece.tokens, piece.logprobs or [], offset)


def _tokens(body: CompletionRequest, loaded: Loaded, prompt: str | list[int]) -> list[int]:
    """The tokens of a prompt that leaves room for its answer: the first one that does not ends the request."""
    tokens = loaded.prompt_tokens(prompt)
    loaded.answer_length(len(tokens), body.max_tokens, DEFAULT_TOKENS, "prompt")
    return tokens


def _sampling(body: CompletionRequest, loaded: Loaded, prompt: int) -> SamplingParams:
    return requests.sampling(
        body,
        max_tokens=loaded.answer_length(prompt, body.max_tokens, DEFAULT_TOKENS, "prompt"),
        logprobs=body.logprobs,
        vocab_size=loaded.info.vocab_size,
    )


def _heads(body: CompletionRequest, loaded: Loaded) -> list[str]:
    """With `echo`, the text of each prompt, which precedes its answers."""
    if not body.echo:
        return [""] * len(body.prompts)
    decode = loaded.text.tokenizer.decode
    return [prompt if isinstance(prompt, str) else decode(prompt, skip_special_tokens=False) for prompt in body.prompts]
