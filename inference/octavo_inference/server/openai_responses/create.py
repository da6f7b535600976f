"""POST /v1/responses."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.answers.plan import AnswerPlan, plan
from octavo_inference.core.request import SamplingParams
from octavo_inference.server import json_body
from octavo_inference.server.errors import RETRY_AFTER_SECONDS, ApiError, internal, invalid
from octavo_inference.server.generation import Generation, Piece
from octavo_inference.server.http import (
    KEEP_ALIVE_SECONDS,
    REQUEST_ID,
    EventStream,
    json_response,
    json_unless_gone,
    without_silence,
)
from octavo_inference.server.openai.responses import ChatLogprob, chat_logprobs
from octavo_inference.server.openai.token_text import TokenLabels
from octavo_inference.server.openai_responses.answer import Answer
from octavo_inference.server.openai_responses.background import BackgroundRun
from octavo_inference.server.openai_responses.conversation import conversation, input_tokens, room_for
from octavo_inference.server.openai_responses.events import EventWriter, failure, introduction_of
from octavo_inference.server.openai_responses.items import Item
from octavo_inference.server.openai_responses.outcome import failed, finished
from octavo_inference.server.openai_responses.record import Record
from octavo_inference.server.openai_responses.request_body import INCLUDE_LOGPROBS, CreateResponseBody
from octavo_inference.server.openai_responses.resource import ReasoningSettings, ResponseObject
from octavo_inference.server.openai_responses.store import ResponseStore, StoredResponse
from octavo_inference.server.openai_responses.text_format import requested_format, text_settings
from octavo_inference.server.openai_responses.tools import tools_of
from octavo_inference.server.planning import check_grammar
from octavo_inference.server.prompts import engine_requests, prompt_headers, tenant_of
from octavo_inference.server.service import Loaded, Service
from octavo_protocol.response_id import response_id

log = logging.getLogger("octavo.http")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request in work: its answer so far, the items before it, and where it is stored."""

    answer: Answer
    items: list[Item]
    tenant: str
    store: ResponseStore
    loaded: Loaded
    wants_logprobs: bool
    request_id: str

    def logprobs(self, piece: Piece) -> list[ChatLogprob]:
        """The log-probabilities of a piece; none if the request did not ask for them."""
        if not self.wants_logprobs:
            return []
        return chat_logprobs(TokenLabels(self.loaded.text.tokenizer), piece.tokens, piece.logprobs or [])

    def keep(self, final: ResponseObject) -> None:
        """Store the response if the request wants it. One that is too large is not stored."""
        if final.store:
            self.store.put(StoredResponse.of(self.tenant, self.items, final))


async def create_response(service: Service, request: HttpRequest) -> Response:
    """Answer an input: whole, as a stream, or in the background."""
    body = await json_body.read(request, CreateResponseBody)
    loaded = await service.require_generator(body.model)
    _check(body, service.responses)
    tenant = tenant_of(service, request)
    items = await conversation(body, service.responses, tenant)
    room = room_for(body, loaded.info.max_model_len, body.max_output_tokens)
    [(tokens, planned)] = await service.tokenise(request, [lambda: _planned(body, loaded, items, room)])
    await check_grammar(service, request, planned)
    sampling = SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        max_tokens=loaded.answer_length(len(tokens), body.max_output_tokens, None, "input"),
        logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        ignore_eos=bool(body.ignore_eos),
    )
    draft = _draft(body, response_id(service.replica, uuid.uuid4().hex), store=_stores(body, service.responses))
    prompts = engine_requests(service, request, loaded, body, draft.id, [tokens], [sampling], planned.guidance)
    headers = await prompt_headers(service, request, loaded, prompts)
    answer = Answer(draft, is_plain=planned.is_plain)
    exchange = _Exchange(
        answer, items, tenant, service.responses, loaded, body.wants_logprobs, request.scope[REQUEST_ID]
    )
    generation = service.generate(request, loaded, prompts, None if planned.is_plain else planned)
    if body.background:
        run = _start(exchange, generation)
        if not body.stream:
            return json_response(_encode(draft), headers=headers)
        stream = run.follow(-1, KEEP_ALIVE_SECONDS, obfuscate=body.wants_obfuscation)
        return EventStream(stream, headers, end=b"")
    if body.stream:
        stream = without_silence(_events(exchange, generation, obfuscate=body.wants_obfuscation))
        return EventStream(stream, headers, end=b"")
    return await json_unless_gone(request.receive, _whole(exchange, generation), headers)


async def _whole(exchange: _Exchange, generation: Generation) -> bytes:
    answer = exchange.answer
    with generation:
        [delta] = await generation.answers()
    answer.add(delta, exchange.logprobs(delta))
    final = finished(answer, generation.counts)
    exchange.keep(final)
    return _encode(final)


async def _events(exchange: _Exchange, generation: Generation, *, obfuscate: bool) -> AsyncGenerator[bytes | None]:
    answer = exchange.answer
    writer = EventWriter(obfuscate=obfuscate)
    introduced = False
    with generation:
        try:
            async for ready in generation.pieces(KEEP_ALIVE_SECONDS):
                written = []
                if not introduced:
                    # Not before the first token: until then a failure is an HTTP error. After a silence it is too late.
                    introduced = True
                    written += writer.write(introduction_of(answer.draft))
                for _, piece in ready or ():
                    written += writer.write(answer.add(piece, exchange.logprobs(piece)))
                yield None if ready is None and not written else b"".join(written)
            final = finished(answer, generation.counts)
        except ApiError as error:
            if not introduced:
                raise
            final = failed(answer, error, generation.counts)
        except Exception:
            if not introduced:
                raise
            log.exception("stream failed", extra={"request_id": exchange.request_id})
            yield b"".join(writer.write([failure(internal(exchange.request_id))]))
            return
    exchange.keep(final)
    yield b"".join(writer.write(answer.closing(final)))


def _start(exchange: _Exchange, generation: Generation) -> BackgroundRun:
    """Submit a response of the background and store it. Raises `ApiError` if there is no room."""
    run = BackgroundRun(Record(exchange.answer, exchange.logprobs), exchange.request_id)
    store = exchange.store
    entry = StoredResponse.of(exchange.tenant, exchange.items, exchange.answer.draft, run)
    if not store.accepts(entry):
        raise invalid(
            f"background: the conversation has {len(entry.input_items)} bytes, and this server stores at most "
            f"{store.limits.input_bytes} of one; send less, or without background.",
            "background",
            "input_too_large",
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(generation)
        if not store.put(entry):
            raise ApiError(
                503,
                "The response store has no room for another response of the background; try again later.",
                code="store_full",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        run.grew = lambda: store.grew(entry)
        run.start(generation, stack.pop_all(), lambda final, data: store.finish(entry, final, data))
    return run


def _planned(
    body: CreateResponseBody, loaded: Loaded, items: list[Item], room: int | None
) -> tuple[list[int], AnswerPlan]:
    """The prompt's tokens and the plan of the answer; for a text thread."""
    tools, constraint = tools_of(body), requested_format(body.text)
    tokens = input_tokens(body, loaded, items, room, tools, guided=constraint is not None)
    return tokens, plan(tokens, loaded.text.tokenizer, loaded.text.formats, tools, constraint)


def _check(body: CreateResponseBody, store: ResponseStore) -> None:
    """Raises `ApiError` for fields that conflict with each other or with the settings of the server."""
    if body.top_logprobs and not body.wants_logprobs:
        raise invalid(f"top_logprobs: needs {INCLUDE_LOGPROBS!r} in include.", "top_logprobs")
    if body.store and not store.enabled:
        raise invalid(
            "store: not supported, this server keeps no responses (--response-store-entries is 0); supported: false.",
            "store",
            "unsupported_value",
        )
    if body.background and not _stores(body, store):
        reason = "store is false" if store.enabled else "this server keeps no responses (--response-store-entries is 0)"
        raise invalid(
            f"background: needs a stored response, and {reason}; supported: false.", "background", "unsupported_value"
        )


def _stores(body: CreateResponseBody, store: ResponseStore) -> bool:
    return store.enabled and body.store is not False


def _draft(body: CreateResponseBody, name: str, *, store: bool) -> ResponseObject:
    """The response before its first token."""
    return ResponseObject(
        id=name,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=body.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningSettings(body.reasoning.effort if body.reasoning else None),
        safety_identifier=body.safety_identifier,
        store=store,
        temperature=1.0 if body.temperature is None else body.temperature,
        text=text_settings(body.text),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )
