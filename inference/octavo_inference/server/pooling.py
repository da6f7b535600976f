"""Embeddings of an HTTP request: its texts as tokens, and their vectors from the engine."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request as HttpRequest

from octavo_inference.common.errors import QueueFullError
from octavo_inference.core.request import Output, Request, SamplingParams
from octavo_inference.engine.output_router import OutputRouter
from octavo_inference.server.errors import ApiError, context_overflow, deadline_exceeded, invalid, overloaded
from octavo_inference.server.generation import failure_of
from octavo_inference.server.http import NOTES
from octavo_inference.server.metrics import SequenceTimer, ServerMetrics
from octavo_inference.server.prompts import SchedulingFields, engine_requests
from octavo_inference.server.service import Loaded, Service

MAX_INPUTS = 2048
"""Texts in one request, as in the OpenAI API."""
# Prompts of one request that are in the engine at the same time: its queue is there for all clients.
_WINDOW = 128

Input = str | list[int]


class PromptUsage(msgspec.Struct, frozen=True):
    """Token counts of a request that generates nothing."""

    prompt_tokens: int
    total_tokens: int


def input_tokens(
    loaded: Loaded, given: Input, field: str, keep: int | None = None, *, first: int | None = None
) -> list[int]:
    """The tokens of a text or of a token array: the first `first`, of those the last `keep`; None keeps all.

    With `keep` -1 it is as many as the context has. Raises `ApiError` for an empty input, for an unknown token, and for
    more tokens than the context has.
    """
    limit = loaded.info.max_model_len
    if keep == 0:
        raise invalid(
            "truncate_prompt_tokens: 0 leaves no prompt; give the number of tokens to keep, or -1 for all that fit.",
            "truncate_prompt_tokens",
        )
    if isinstance(given, str):
        # A text that is surely too long is not tokenised.
        if keep is None and first is None and len(given) // loaded.longest_token > limit:
            raise context_overflow(len(given) // loaded.longest_token, 0, limit, field)
        tokens = list(loaded.text.tokenizer.encode(given).ids)
    else:
        tokens = given
        unknown = next((token for token in tokens if token >= loaded.info.vocab_size), None)
        if unknown is not None:
            raise invalid(f"{field}: {unknown} is not a token; the vocabulary has {loaded.info.vocab_size}.", field)
    if not tokens:
        raise invalid(f"{field}: it is empty; give at least one token.", field)
    tokens = tokens[:first]
    if keep is not None:
        tokens = tokens[-(limit if keep < 0 else keep) :]
    if len(tokens) > limit:
        raise context_overflow(len(tokens), 0, limit, field)
    return tokens


def pooled_requests(
    service: Service, request: HttpRequest, body: SchedulingFields, loaded: Loaded, inputs: list[list[int]]
) -> list[Request]:
    """The engine requests of an HTTP request for embeddings. Raises `ApiError`.

    Their cache policy is "batch" unless the body has one: texts to embed rarely share a prefix with later ones.
    """
    if not loaded.info.hidden_size:
        raise invalid("model: its hidden states cannot be read, so it gives no embeddings.", "model")
    sampling = [SamplingParams()] * len(inputs)
    requests = engine_requests(service, request, body, f"embd-{uuid.uuid4().hex}", inputs, sampling)
    return [
        msgspec.structs.replace(one, pooling=loaded.text.pooling, cache_policy=one.cache_policy or "batch")
        for one in requests
    ]


def pooled_prompts(service: Service, request: HttpRequest, prompts: list[Request]) -> PooledPrompts:
    """The prompts of an HTTP request, for the engine."""
    return PooledPrompts(prompts, service.router, service.metrics, service.clock, request.scope[NOTES])


class PooledPrompts:
    """The prompts of one HTTP request on their way through the engine.

    Any exit of `vectors` aborts the unfinished ones. On exit it adds the token counts to `notes`, for the access log.
    """

    def __init__(
        self,
        prompts: Sequence[Request],
        router: OutputRouter,
        metrics: ServerMetrics,
        clock: Callable[[], float],
        notes: dict[str, int],
    ) -> None:
        count = sum(len(prompt.tokens) for prompt in prompts)
        self.usage = PromptUsage(count, count)
        self._prompts = prompts
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._notes = notes
        self._arrival = 0.0
        self._waiting: deque[Request] = deque(prompts)
        self._open: dict[str, SequenceTimer] = {}
        self._vectors: dict[str, bytes] = {}
        self._done: asyncio.Future[None] | None = None

    async def vectors(self) -> list[bytes]:
        """The vectors, float32, in the order of the prompts. Raises `ApiError`."""
        self._arrival = self._clock()
        done = self._done = asyncio.get_running_loop().create_future()
        try:
            self._submit()
            await done
        except ApiError:
            self._end("error")
            raise
        finally:
            self._end("abort")
            self._notes.update(prompt_tokens=self.usage.prompt_tokens, completion_tokens=0)
        return [self._vectors[prompt.id] for prompt in self._prompts]

    def _submit(self) -> None:
        """Submit prompts up to the window, or as many as the queue takes. Raises `ApiError` if it takes none."""
        now = self._clock()
        while self._waiting and len(self._open) < _WINDOW:
            prompt = _due(self._waiting[0], now - self._arrival)
            try:
                self._router.submit([prompt], self._deliver)
            except QueueFullError as error:
                if self._open:
                    return
                self._metrics.rejected["queue_full"] += 1
                raise overloaded(error.waiting) from None
            self._waiting.popleft()
            self._metrics.prompt_tokens += len(prompt.tokens)
            self._open[prompt.id] = SequenceTimer(self._metrics, self._arrival)

    def _deliver(self, output: Output) -> None:
        """Take an output. The next prompt is submitted at once, so a drain does not end between two of them."""
        if self._done is None or self._done.done():
            return
        if output.embedding is None:
            self._done.set_exception(failure_of(output))
            return
        self._vectors[output.id] = output.embedding
        self._metrics.cached_tokens += output.cached_tokens
        self._open.pop(output.id).finish("stop", self._clock())
        try:
            self._submit()
        except ApiError as error:
            self._done.set_exception(error)
        if not self._open and not self._waiting:
            self._done.set_result(None)

    def _end(self, reason: str) -> None:
        self._waiting.clear()
        for request_id, timer in self._open.items():
            self._router.abort(request_id)
            timer.finish(reason, self._clock())
        self._open.clear()


def _due(prompt: Request, elapsed: float) -> Request:
    """The prompt with the rest of its time. Raises `ApiError` if it is up."""
    if prompt.timeout is None:
        return prompt
    left = prompt.timeout - elapsed
    if left < 0.001:
        raise deadline_exceeded(f"its time of {prompt.timeout:g} s was up before all of its inputs were embedded")
    return msgspec.structs.replace(prompt, timeout=left)
