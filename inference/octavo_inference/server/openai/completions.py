"""POST /v1/completions."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.core.request import Request, SamplingParams, TokenLogprobs
from octavo_inference.grammar.structured_outputs import Constraint
from octavo_inference.server import json_body, structured_output
from octavo_inference.server.errors import invalid
from octavo_inference.server.generation import Generation
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_unless_gone
from octavo_inference.server.openai import requests
from octavo_inference.server.openai.reply import Reply, StreamExtras, obfuscation
from octavo_inference.server.openai.requests import CompletionRequest
from octavo_inference.server.openai.responses import (
    CompletionLogprobs,
    PromptLogprobs,
    TextChoice,
    TextResponse,
    Usage,
    completion_logprobs,
    prompt_logprobs,
    trimmed,
)
from octavo_inference.server.openai.token_text import TextOffsets, control_tokens
from octavo_inference.server.prompts import engine_requests, prompt_headers
from octavo_inference.server.refusals import unsupported
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sse import MARK, event, template
from octavo_inference.tokenizer.detokenizer import Delta

# The OpenAI API's default for this endpoint.
DEFAULT_TOKENS = 16
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Prompts, sampling parameters and, with `echo`, the texts that precede the answers; one each per prompt.

    `constraint` is what every answer must be.
    """

    tokens: list[list[int]]
    sampling: list[SamplingParams]
    heads: list[str]
    constraint: Constraint | None


async def completions(service: Service, request: HttpRequest) -> Response:
    """Continue one or more prompts, whole or as a stream."""
    body = await json_body.read(request, CompletionRequest, service.check_ids)
    loaded = await service.require_generator(body.model)
    _check(body, body.answer_tokens)
    asked = body.prompts
    service.check_sequences(len(asked) * _generated(body), "best_of" if _chooses(body) else "n")
    if body.truncate_prompt_tokens is None:
        loaded.check_prompts(asked)
    tokens = await service.tokenise(request, [partial(_tokens, body, loaded, prompt) for prompt in asked])
    prepared = await service.work(lambda: _prepared(body, loaded, tokens))
    guidance = await structured_output.guidance(service, request, prepared.constraint)
    reply = Reply.new(
        "cmpl",
        body.model,
        loaded.text.tokenizer,
        logprobs=body.logprobs is not None,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
    prompts = engine_requests(service, request, loaded, body, reply.id, prepared.tokens, prepared.sampling, guidance)
    headers = await prompt_headers(service, request, loaded, prompts)
    generation = service.generate(request, loaded, prompts)
    heads = [head for head in prepared.heads for _ in range(prepared.sampling[0].n)]
    answer = _Answer(body, generation, reply, heads)
    if body.stream:
        chunks = _TextChunks(answer, StreamExtras.of(body.stream_options))
        return EventStream(_events(chunks, generation), headers)
    return await json_unless_gone(request.receive, _whole(answer), headers)


def _tokens(body: CompletionRequest, loaded: Loaded, prompt: str | list[int]) -> list[int]:
    """The tokens of a prompt that leaves room for its answer: the first one that does not ends the request."""
    wanted, limit = body.answer_tokens, body.truncate_prompt_tokens
    room = DEFAULT_TOKENS if wanted is None else wanted
    tokens = loaded.truncated(loaded.prompt_tokens(prompt, bounded=limit is None), limit, room)
    loaded.answer_length(len(tokens), None if wanted is None else max(wanted, 1), DEFAULT_TOKENS, "prompt")
    return tokens


def _prepared(body: CompletionRequest, loaded: Loaded, tokens: list[list[int]]) -> _Prepared:
    """What the engine needs, for a text thread. Raises `ApiError`."""
    wanted, asked, limit = body.answer_tokens, body.prompts, body.truncate_prompt_tokens
    scored = _prompt_alternatives(body)
    requests.check_prompt_logprobs([len(prompt) for prompt in tokens], scored, _scored_field(body))
    bad_words = requests.bad_words(body, loaded.text.tokenizer)
    # The engine generates at least one token. With `max_tokens` 0 it is not shown.
    least = None if wanted is None else max(wanted, 1)
    sampling = [
        requests.sampling(
            body,
            max_tokens=loaded.answer_length(len(prompt), least, DEFAULT_TOKENS, "prompt"),
            logprobs=0 if body.logprobs is None and _chooses(body) else body.logprobs,
            vocab_size=loaded.vocab_size,
            bad_words=bad_words,
            prompt_logprobs=scored,
        )
        for prompt in tokens
    ]
    sampling = [msgspec.structs.replace(params, n=_generated(body)) for params in sampling]
    decode = loaded.text.tokenizer.decode
    heads = [""] * len(asked)
    if body.echo:
        heads = [
            prompt if isinstance(prompt, str) and limit is None else decode(ids, skip_special_tokens=False)
            for prompt, ids in zip(asked, tokens, strict=True)
        ]
    constraint = structured_output.requested(body.response_format, body.structured_outputs)
    return _Prepared(tokens, sampling, heads, constraint)


def _check(body: CompletionRequest, wanted: int | None) -> None:
    requests.check(body)
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise invalid(f"best_of: {body.best_of} is less than n ({body.n}).", "best_of")
    if body.stream and _chooses(body):
        raise unsupported("best_of", [f"{body.n or 1} (the value of n) with stream"], body.best_of)
    if wanted == 0 and not body.echo and body.prompt_logprobs is None:
        raise invalid("max_tokens: 0 needs echo or prompt_logprobs; without them, give at least 1.", "max_tokens")


def _generated(body: CompletionRequest) -> int:
    """How many answers are generated for each prompt."""
    return body.best_of or body.n or 1


def _chooses(body: CompletionRequest) -> bool:
    """True if more answers are generated than returned."""
    return _generated(body) > (body.n or 1)


def _prompt_alternatives(body: CompletionRequest) -> int | None:
    """The number of alternatives per prompt token that the engine reports."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in asked if number is not None), default=None)


def _scored_field(body: CompletionRequest) -> str:
    return "echo" if body.prompt_logprobs is None else "prompt_logprobs"


class _Answer:
    """The texts of a response: `heads` and the pieces of the generation, by choice."""

    def __init__(self, body: CompletionRequest, generation: Generation, reply: Reply, heads: list[str]) -> None:
        self.generation = generation
        self.reply = reply
        self.heads = heads
        self.opens = bool(body.echo or reply.token_ids or body.prompt_logprobs is not None)
        """True if choices begin with a part for the prompt."""
        self._n = len(heads) // len(generation.prompts)
        self._returned = body.n or 1
        self._echo = bool(body.echo)
        self._logprobs = body.logprobs
        self._prompt_logprobs = body.prompt_logprobs
        self._silent = body.answer_tokens == 0
        self._control = control_tokens(reply.tokenizer) if reply.logprobs else frozenset()
        self._hidden = frozenset() if body.skip_special_tokens is False else self._control
        self._offsets = [self._text_offsets() for _ in heads] if reply.logprobs else []

    @property
    def usage(self) -> Usage:
        """The token counts so far, without a token that was not asked for."""
        usage = Usage.of(self.generation.counts)
        if not self._silent:
            return usage
        return Usage(usage.prompt_tokens, 0, usage.prompt_tokens, usage.prompt_tokens_details)

    def chosen(self, pieces: Sequence[Delta]) -> list[int]:
        """The generated answers to return: with `best_of` the likeliest of each prompt, the best first."""
        if self._returned == self._n:
            return list(range(len(pieces)))
        found: list[int] = []
        for first in range(0, len(pieces), self._n):
            group = range(first, first + self._n)
            found += sorted(group, key=lambda index: -mean_logprob(pieces[index]))[: self._returned]
        return found

    def shown(self, piece: Delta) -> Delta:
        """A piece, without its text if only the prompt was asked for."""
        if not self._silent:
            return piece
        return Delta("", [], None if piece.logprobs is None else [], "length")

    def first(self, index: int) -> TextChoice:
        """The prompt's part of a choice."""
        prompt = self.generation.prompts[index // self._n]
        scores = self.generation.prompt_logprobs.get(prompt.id)
        return TextChoice(
            index,
            self.heads[index],
            self._head_logprobs(index, prompt, scores or [None] * len(prompt.tokens))
            if self.reply.logprobs and self._echo
            else None,
            prompt_token_ids=self.reply.ids(prompt.tokens),
            prompt_logprobs=self._scores(prompt, scores),
        )

    def rest(self, index: int, piece: Delta) -> TextChoice:
        """A piece's part of a choice, without its finish reason."""
        logprobs = None
        if self.reply.logprobs:
            found = piece.logprobs or []
            logprobs = completion_logprobs(self.reply.labels, piece.tokens, found, self._offsets[index])
        return TextChoice(index, piece.text, logprobs, token_ids=self.reply.ids(piece.tokens))

    def _text_offsets(self) -> TextOffsets:
        offsets = TextOffsets(self.reply.tokenizer)
        offsets.hidden = self._hidden
        return offsets

    def _head_logprobs(self, index: int, prompt: Request, scores: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        offsets, first = self._offsets[index], prompt.tokens[0]
        name = self.reply.tokenizer.id_to_token(first) or ""
        # A token that the tokenizer puts before a text is not in the text.
        added = first in self._control and not self.heads[index].startswith(name)
        offsets.hidden = frozenset({first}) if added else frozenset()
        found = completion_logprobs(self.reply.labels, prompt.tokens, trimmed(scores, self._logprobs or 0), offsets)
        offsets.hidden = self._hidden
        return found

    def _scores(self, prompt: Request, scores: Sequence[TokenLogprobs | None] | None) -> PromptLogprobs | UnsetType:
        if scores is None or self._prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(self.reply.labels, prompt.tokens, trimmed(scores, self._prompt_logprobs))


def mean_logprob(piece: Delta) -> float:
    """The mean log-probability of an answer's tokens; lower than any other for an answer without tokens."""
    if not piece.logprobs:
        return -math.inf
    return sum(entry.logprob for entry in piece.logprobs) / len(piece.logprobs)


async def _whole(answer: _Answer) -> bytes:
    generation, reply = answer.generation, answer.reply
    with generation:
        pieces = await generation.answers()
    choices = []
    for number, index in enumerate(answer.chosen(pieces)):
        shown = answer.shown(pieces[index])
        head, rest = answer.first(index), answer.rest(index, shown)
        choices.append(
            TextChoice(
                number,
                head.text + rest.text,
                _joined(head.logprobs, rest.logprobs),
                shown.finish_reason,
                shown.stop_reason,
                rest.token_ids,
                head.prompt_token_ids,
                head.prompt_logprobs,
            )
        )
    return _encode(TextResponse(reply.id, reply.created, reply.model, choices, usage=answer.usage))


async def _events(chunks: _TextChunks, generation: Generation) -> AsyncGenerator[bytes | None]:
    with generation:
        async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
            if ready is None:
                yield None
                continue
            yield b"".join([part for index, piece in ready for part in chunks.of(index, piece)])
        if end := chunks.closing():
            yield end


class _TextChunks:
    """The events of a stream. Those that differ in their text only are filled into a template."""

    def __init__(self, answer: _Answer, extras: StreamExtras) -> None:
        self._answer = answer
        self._extras = extras
        self._own_chunks = answer.reply.token_ids or extras.own_chunks
        choices = range(answer.generation.choices)
        self._unopened = set(choices) if answer.opens else set()
        self._plain = [template(self._chunk([TextChoice(index, MARK)])) for index in choices]

    def of(self, index: int, piece: Delta) -> list[bytes]:
        """A piece of a choice: its text, and apart from it the reason for its end. The first one follows the prompt."""
        events = []
        if index in self._unopened:
            self._unopened.remove(index)
            events.append(event(self._chunk([self._answer.first(index)])))
        shown = self._answer.shown(piece)
        if shown.logprobs is not None or self._own_chunks:
            if shown.text or shown.tokens:
                events.append(event(self._chunk([self._answer.rest(index, shown)])))
        elif shown.text:
            events.append(self._plain[index](shown.text))
        if shown.finish_reason is not None:
            last = TextChoice(index, "", finish_reason=shown.finish_reason, stop_reason=shown.stop_reason)
            events.append(event(self._chunk([last])))
        return events

    def closing(self) -> bytes:
        """The token counts, if the request asked for them."""
        return event(self._chunk([], usage=self._answer.usage)) if self._extras.usage else b""

    def _chunk(self, choices: list[TextChoice], **fields: Any) -> bytes:
        extras, reply = self._extras, self._answer.reply
        if extras.running_usage:
            fields["usage"] = self._answer.usage
        elif extras.usage:
            fields.setdefault("usage", None)
        if extras.obfuscation and choices:
            fields["obfuscation"] = obfuscation(choices[0].text)
        return _encode(TextResponse(reply.id, reply.created, reply.model, choices, **fields))


def _joined(head: CompletionLogprobs | None, rest: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if head is None or rest is None:
        return rest
    return CompletionLogprobs(
        head.tokens + rest.tokens,
        head.token_logprobs + rest.token_logprobs,
        head.top_logprobs + rest.top_logprobs,
        head.text_offset + rest.text_offset,
    )
