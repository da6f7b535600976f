"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.core.request import SamplingParams
from octavo_inference.server.http import EventStream, json_response, read_json, until_disconnect
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.chat import CLIENT_GONE
from octavo_inference.server.openai.completion_stream import Prompts, pieces, usage, whole
from octavo_inference.server.openai.errors import invalid
from octavo_inference.server.openai.requests import CompletionRequest
from octavo_inference.server.openai.responses import (
    CompletionLogprobs,
    TextChoice,
    TextResponse,
    Usage,
    completion_logprobs,
)
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template
from octavo_inference.tokenizer.detokenizer import Delta

# The OpenAI API's default for this endpoint.
DEFAULT_TOKENS = 16
_encode = msgspec.json.Encoder().encode


async def completions(service: Service, request: HttpRequest) -> Response:
    """Continue one or more prompts, whole or as a stream."""
    body = requests.decode(await read_json(request), CompletionRequest)
    loaded = service.require(body.model)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("best_of: only the value of n is supported.", "best_of")
    if body.echo and body.logprobs is not None:
        raise invalid("echo: log-probabilities of the prompt are not supported yet; leave out logprobs.", "echo")
    asked = body.prompts
    tokens = await service.work(lambda: [loaded.prompt_tokens(prompt) for prompt in asked])
    sampling = [_sampling(body, loaded, len(prompt)) for prompt in tokens]
    prompts = Prompts.of(service, loaded, request, body.model, "cmpl", tokens, sampling, body)
    heads = _heads(loaded, asked) if body.echo else [""] * len(asked)
    headers = await prompts.headers()
    if body.stream:
        return EventStream(_events(prompts, heads, include_usage=body.include_usage), headers)
    answer = await until_disconnect(request.receive, _whole(prompts, heads))
    return Response(status_code=CLIENT_GONE) if answer is None else json_response(answer, headers=headers)


async def _whole(prompts: Prompts, heads: list[str]) -> bytes:
    with prompts.running() as generation:
        answers = await whole(generation, prompts.choices)
        n = prompts.sampling[0].n
        choices = [
            TextChoice(
                index,
                heads[index // n] + answer.text,
                _piece_logprobs(prompts, answer, 0),
                answer.finish_reason,
                answer.stop_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return _encode(TextResponse(prompts.id, prompts.created, prompts.model, choices, usage=usage(generation)))


async def _events(prompts: Prompts, heads: list[str], *, include_usage: bool) -> AsyncGenerator[bytes | None]:
    empty = None if include_usage else UNSET
    n = prompts.sampling[0].n
    lengths = [0] * prompts.choices

    def chunk(choices: list[TextChoice], counts: Usage | UnsetType | None = empty) -> bytes:
        return _encode(TextResponse(prompts.id, prompts.created, prompts.model, choices, usage=counts))

    plain = [template(chunk([TextChoice(index, MARK)])) for index in range(prompts.choices)]
    with prompts.running() as generation:
        async for ready in pieces(generation):
            if ready is None:
                yield None
                continue
            events = []
            for index, piece in ready:
                head = "" if lengths[index] else heads[index // n]
                text = head + piece.text
                if piece.finish_reason is None and piece.logprobs is None:
                    events.append(plain[index](text))
                else:
                    choice = TextChoice(
                        index,
                        text,
                        _piece_logprobs(prompts, piece, lengths[index]),
                        piece.finish_reason,
                        piece.stop_reason if piece.finish_reason else UNSET,
                    )
                    events.append(event(chunk([choice])))
                lengths[index] += len(text)
            yield b"".join(events)
        if include_usage:
            yield event(chunk([], usage(generation)))


def _piece_logprobs(prompts: Prompts, piece: Delta, offset: int) -> CompletionLogprobs | None:
    if prompts.sampling[0].logprobs is None:
        return None
    return completion_logprobs(prompts.loaded.text.tokenizer, piece.tokens, piece.logprobs or [], offset)


def _sampling(body: CompletionRequest, loaded: Loaded, prompt: int) -> SamplingParams:
    return requests.sampling(
        body,
        max_tokens=loaded.answer_length(prompt, body.max_tokens, DEFAULT_TOKENS, "prompt"),
        logprobs=body.logprobs,
        vocab_size=loaded.info.vocab_size,
    )


def _heads(loaded: Loaded, prompts: list[str | list[int]]) -> list[str]:
    return [
        prompt if isinstance(prompt, str) else loaded.text.tokenizer.decode(prompt, skip_special_tokens=False)
        for prompt in prompts
    ]
