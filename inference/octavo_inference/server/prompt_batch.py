"""The prompts of one HTTP request on their way through the engine: a few at a time, one output for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request as HttpRequest

from octavo_inference.common.errors import QueueFullError
from octavo_inference.core.request import Output, Request
from octavo_inference.engine.output_router import OutputRouter
from octavo_inference.server.errors import ApiError, deadline_exceeded, overloaded
from octavo_inference.server.generation import failure_of
from octavo_inference.server.http import NOTES
from octavo_inference.server.metrics import SequenceTimer, ServerMetrics
from octavo_inference.server.service import Service

# Prompts of one request that are in the engine at the same time: its queue is there for all clients.
_WINDOW = 128


class PromptUsage(msgspec.Struct, frozen=True):
    """Token counts of a request that answers with numbers."""

    prompt_tokens: int
    total_tokens: int


def prompt_batch(service: Service, request: HttpRequest, prompts: Sequence[Request]) -> PromptBatch:
    """The prompts of an HTTP request, for the engine."""
    return PromptBatch(prompts, service.router, service.metrics, service.clock, request.scope[NOTES])


class PromptBatch:
    """The prompts of one HTTP request that have one output each: an embedding, or the log-probabilities of one token.

    Any exit of `outputs` aborts the unfinished ones. On exit it adds the token counts to `notes`, for the access log.
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
        self._outputs: dict[str, Output] = {}
        self._done: asyncio.Future[None] | None = None

    async def outputs(self) -> list[Output]:
        """The outputs, in the order of the prompts. Raises `ApiError`."""
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
            self._notes.update(
                prompt_tokens=self.usage.prompt_tokens,
                completion_tokens=sum(len(output.tokens) for output in self._outputs.values()),
            )
        return [self._outputs[prompt.id] for prompt in self._prompts]

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
        if output.finish_reason in {"error", "abort"}:
            self._done.set_exception(failure_of(output))
            return
        self._outputs[output.id] = output
        self._metrics.cached_tokens += output.cached_tokens
        timer, now = self._open.pop(output.id), self._clock()
        timer.tokens(len(output.tokens), now)
        timer.finish(output.finish_reason or "stop", now)
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
        raise deadline_exceeded(f"its time of {prompt.timeout:g} s was up before all of its texts were computed")
    return msgspec.structs.replace(prompt, timeout=left)
