"""What both completion endpoints share: running prompts and collecting what comes back, per choice."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest

from octavo_inference.api.generate import Generation, Handling
from octavo_inference.api.http import KEEP_ALIVE_SECONDS, NOTES, TENANT
from octavo_inference.api.requests import Common, timeout
from octavo_inference.api.responses import Usage
from octavo_inference.api.service import Loaded, Service
from octavo_inference.core.request import SamplingParams, TokenLogprobs
from octavo_inference.text import Delta
from octavo_protocol.names import HEADER_TIMEOUT


@dataclass(slots=True)
class Piece:
    """A stretch of one choice's answer."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        """Append."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs or []
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


@dataclass(frozen=True, slots=True)
class Prompts:
    """A validated request, not yet running. `id` and `created` stand in every chunk of its answer."""

    service: Service
    loaded: Loaded
    id: str
    created: int
    model: str
    request: HttpRequest
    tokens: list[list[int]]
    sampling: list[SamplingParams]
    handling: Handling

    @classmethod
    def of(
        cls,
        service: Service,
        loaded: Loaded,
        request: HttpRequest,
        model: str,
        kind: str,
        tokens: list[list[int]],
        sampling: list[SamplingParams],
        body: Common,
    ) -> Prompts:
        """Prompts of an HTTP request. Prefix caches are apart per key holder, and within one per `cache_salt`."""
        tenant = request.scope[TENANT]
        return cls(
            service=service,
            loaded=loaded,
            # Not the request id, which clients choose: two at once may choose the same.
            id=f"{kind}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model,
            request=request,
            tokens=tokens,
            sampling=sampling,
            handling=Handling(
                salt="/".join(filter(None, (tenant, body.cache_salt))),
                tenant=tenant,
                priority=body.priority or 0,
                cache_policy=body.cache_policy,
                timeout=timeout(request.headers.get(HEADER_TIMEOUT)),
            ),
        )

    @property
    def choices(self) -> int:
        """How many answers there will be."""
        return sum(params.n for params in self.sampling)

    @contextmanager
    def running(self) -> Iterator[Generation]:
        """The prompts in the engine; left, however that happens, nothing of them runs on."""
        generation = Generation(
            self.service, self.loaded.text.tokenizer, self.id, self.tokens, self.sampling, self.handling
        )
        try:
            yield generation
        finally:
            generation.close()
            self.request.scope[NOTES].update(
                prompt_tokens=generation.prompt_tokens, completion_tokens=generation.completion_tokens
            )


async def pieces(generation: Generation) -> AsyncIterator[list[tuple[int, Piece]] | None]:
    """Pieces worth an event, per choice: with text, or the last. None after a while of nothing."""
    pending: dict[int, Piece] = {}
    while not generation.finished:
        deltas = await generation.deltas(KEEP_ALIVE_SECONDS)
        if not deltas:
            yield None
            continue
        for choice, delta in deltas:
            pending.setdefault(choice, Piece()).add(delta)
        ready = [(choice, piece) for choice, piece in pending.items() if piece.text or piece.finish_reason]
        for choice, _ in ready:
            del pending[choice]
        if ready:
            yield ready


async def whole(generation: Generation, choices: int) -> list[Piece]:
    """All answers, complete."""
    answers = [Piece() for _ in range(choices)]
    while not generation.finished:
        for choice, delta in await generation.deltas():
            answers[choice].add(delta)
    return answers


def usage(generation: Generation) -> Usage:
    """Token counts so far."""
    return Usage.of(generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens)
