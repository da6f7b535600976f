"""What both completion endpoints share: running prompts and collecting what comes back, per choice."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from octavo_inference.core.request import SamplingParams
from octavo_inference.server import gateway_headers
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, NOTES, REQUEST_ID, TENANT
from octavo_inference.server.openai.generate import Generation, Handling
from octavo_inference.server.openai.requests import Common, timeout
from octavo_inference.server.openai.responses import Usage
from octavo_inference.server.service import Loaded, Service
from octavo_inference.tokenizer.detokenizer import Delta
from octavo_protocol.names import HEADER_PROMPT, HEADER_TIMEOUT


def joined(first: Delta, then: Delta) -> Delta:
    """Two stretches of one choice's answer as one."""
    return Delta(
        first.text + then.text,
        first.tokens + then.tokens,
        None if first.logprobs is None and then.logprobs is None else [*(first.logprobs or ()), *(then.logprobs or ())],
        then.finish_reason,
        then.stop_reason,
    )


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
        """Prompts of an HTTP request. Prefix caches are apart per tenant, and within one per `cache_salt`.

        Raises `ApiError` for headers that no gateway sends.
        """
        tenant, priority = request.scope[TENANT], body.priority
        if service.tenant_header:
            tenant = gateway_headers.tenant(request.headers, tenant)
            priority = gateway_headers.priority(request.headers, priority)
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
                salt=gateway_headers.salt(tenant, body.cache_salt),
                tenant=tenant,
                priority=priority or 0,
                cache_policy=body.cache_policy,
                timeout=timeout(request.headers.get(HEADER_TIMEOUT)),
                request_id=request.scope[REQUEST_ID],
            ),
        )

    @property
    def choices(self) -> int:
        """How many answers there will be."""
        return sum(params.n for params in self.sampling)

    async def headers(self) -> dict[str, str]:
        """What the answer's headers say of the prompt, when there is one and a gateway wants to know; else nothing."""
        if len(self.tokens) != 1 or not gateway_headers.wants_prompt(self.request.headers):
            return {}
        [tokens], info, salt = self.tokens, self.loaded.info, self.handling.salt
        return {HEADER_PROMPT: await self.service.work(lambda: gateway_headers.prompt_header(tokens, info, salt))}

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


async def pieces(generation: Generation) -> AsyncIterator[list[tuple[int, Delta]] | None]:
    """Pieces worth an event, per choice: with text, or the last. None after a while of nothing."""
    pending: dict[int, Delta] = {}
    while not generation.finished:
        deltas = await generation.deltas(KEEP_ALIVE_SECONDS)
        if not deltas:
            yield None
            continue
        for choice, delta in deltas:
            pending[choice] = joined(pending[choice], delta) if choice in pending else delta
        ready = [(choice, piece) for choice, piece in pending.items() if piece.text or piece.finish_reason]
        for choice, _ in ready:
            del pending[choice]
        if ready:
            yield ready


async def whole(generation: Generation, choices: int) -> list[Delta]:
    """All answers, complete."""
    parts: list[list[Delta]] = [[] for _ in range(choices)]
    while not generation.finished:
        for choice, delta in await generation.deltas():
            parts[choice].append(delta)
    return [
        Delta(
            "".join(delta.text for delta in deltas),
            [token for delta in deltas for token in delta.tokens],
            [entry for delta in deltas for entry in delta.logprobs or ()],
            deltas[-1].finish_reason,
            deltas[-1].stop_reason,
        )
        for deltas in parts
    ]


def usage(generation: Generation) -> Usage:
    """Token counts so far."""
    return Usage.of(generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens)
