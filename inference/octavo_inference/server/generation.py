"""A running generation: prompts in the engine, and the growing text of their answers.

    with service.generate(request, loaded, prompts) as generation:
        async for pieces in generation.pieces(KEEP_ALIVE_SECONDS):
            ...

Entering submits all prompts or raises. Any exit aborts the unfinished sequences: the client disconnected, a sequence
failed, or the server stops. Neither awaits, so no cancellation can interrupt them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tokenizers import Tokenizer

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.answers.reader import AnswerReader
from octavo_inference.chat_format.events import Event
from octavo_inference.common.errors import QueueFullError, RequestError
from octavo_inference.core.request import DEADLINE, ENGINE_GONE, NO_ADAPTER, REFUSED, Output, Request, TokenLogprobs
from octavo_inference.engine.output_router import OutputRouter
from octavo_inference.server.errors import (
    ApiError,
    adapter_failed,
    deadline_exceeded,
    engine_failed,
    engine_gone,
    invalid,
    overloaded,
)
from octavo_inference.server.metrics import SequenceTimer, ServerMetrics
from octavo_inference.tokenizer.detokenizer import Delta, Detokenizer

NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class TokenCounts:
    """Token counts of a generation so far; `cached` counts prompt tokens from the prefix cache."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int | None = None
    """Tokens of thinking, which `completion` includes; None if the model does not think."""


@dataclass(slots=True)
class _Choice:
    number: int
    detokenizer: Detokenizer
    timer: SequenceTimer


class Piece(Delta, frozen=True):
    """A part of a choice's answer. `parts` are what it completes of text, thinking and calls, if there is a plan."""

    parts: Sequence[Event] = ()


class Generation:
    """The answers to prompts; use it as a context manager. Choices are numbered prompt by prompt: prompt * n + index.

    On exit it adds the token counts to `notes`, for the access log. With a `plan`, pieces have `parts`.
    """

    def __init__(
        self,
        prompts: Sequence[Request],
        tokenizer: Tokenizer,
        router: OutputRouter,
        metrics: ServerMetrics,
        clock: Callable[[], float],
        notes: dict[str, int],
        plan: AnswerPlan | None = None,
    ) -> None:
        self.choices = sum(prompt.sampling.n for prompt in prompts)
        self.counts = TokenCounts(sum(len(prompt.tokens) for prompt in prompts))
        self.prompts = prompts
        self.prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}
        """By request id, once its first output is here, if the request asked for them."""
        self.readers: list[AnswerReader] = []
        """With a plan, the answers so far, by choice."""
        self._tokenizer = tokenizer
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._notes = notes
        self._plan = plan
        if plan is not None and plan.reasoning is not None:
            self.counts.reasoning = 0
        self._open: dict[tuple[str, int], _Choice] = {}
        # Prompts whose cached tokens are counted already.
        self._cached: set[str] = set()
        self._failure: ApiError | None = None
        self._arrived: list[Output] = []
        self._wake: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._submit()
        try:
            self._add_choices(self._clock())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for prompt in self.prompts:
            self._router.abort(prompt.id)
        now = self._clock()
        for choice in self._open.values():
            choice.timer.finish("abort" if self._failure is None else "error", now)
        self._open.clear()
        self._notes.update(prompt_tokens=self.counts.prompt, completion_tokens=self.counts.completion)

    async def pieces(self, patience: float | None = None) -> AsyncIterator[list[tuple[int, Piece]] | None]:
        """New pieces as (choice, piece). A piece has text, or is the last. None after `patience` seconds without any.

        Raises `ApiError` if the engine fails one of the sequences.
        """
        held: dict[int, Piece] = {}
        while self._open:
            outputs = await self._outputs(patience)
            if not outputs:
                yield None
                continue
            for choice, delta in self._deltas(outputs):
                held[choice] = joined([held[choice], delta]) if choice in held else delta
            ready = [(choice, piece) for choice, piece in held.items() if piece.text or piece.finish_reason]
            for choice, _ in ready:
                del held[choice]
            if ready:
                yield ready
            if self._failure is not None:
                raise self._failure

    async def answers(self) -> list[Piece]:
        """All complete answers, by choice. Raises like `pieces`."""
        parts: list[list[Piece]] = [[] for _ in range(self.choices)]
        async for ready in self.pieces():
            for choice, piece in ready or ():
                parts[choice].append(piece)
        return [joined(pieces) for pieces in parts]

    def _submit(self) -> None:
        try:
            self._router.submit(self.prompts, self._deliver)
        except RequestError as error:
            raise invalid(str(error), error.field) from None
        except QueueFullError as error:
            self._metrics.rejected["queue_full"] += 1
            raise overloaded(error.waiting) from None
        for prompt in self.prompts:
            self._metrics.admitted(len(prompt.tokens), prompt.sampling.max_tokens, prompt.sampling.n)

    def _add_choices(self, now: float) -> None:
        # Stop strings are matched here on the text; the engine matches tokens only.
        for prompt in self.prompts:
            sampling = prompt.sampling
            for index in range(sampling.n):
                text = Detokenizer.of(
                    self._tokenizer, prompt.tokens, sampling, self._plan.shown if self._plan else NONE
                )
                self._open[prompt.id, index] = _Choice(len(self._open), text, SequenceTimer(self._metrics, now))
                if self._plan is not None:
                    self.readers.append(self._plan.reader())

    def _deltas(self, outputs: list[Output]) -> list[tuple[int, Piece]]:
        """Text deltas of outputs for their choices, up to the first failure."""
        now = self._clock()
        deltas = []
        for output in outputs:
            if output.finish_reason in {"error", "abort"}:
                # May belong to a finished choice: when the engine ends, each request gets one output.
                self._failure = failure_of(output)
                break
            choice = self._open.get((output.id, output.index))
            if choice is not None:
                deltas.append((choice.number, self._advance(output, choice, now)))
        return deltas

    def _advance(self, output: Output, choice: _Choice, now: float) -> Piece:
        delta = choice.detokenizer.push(output)
        choice.timer.tokens(len(delta.tokens), now, output.queued)
        self.counts.completion += len(delta.tokens)
        if output.id not in self._cached and delta.tokens:
            self._cached.add(output.id)
            self.counts.cached += output.cached_tokens
            self._metrics.cached_tokens += output.cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs[output.id] = output.prompt_logprobs
        if delta.finish_reason is not None:
            if output.finish_reason is None:
                self._router.abort(output.id, output.index)
            choice.timer.finish(delta.finish_reason, now)
            del self._open[output.id, output.index]
        return self._read(choice.number, delta)

    def _read(self, number: int, delta: Delta) -> Piece:
        """A piece with the parts of the answer that it completes, if there is a plan."""
        if not self.readers:
            return Piece(delta.text, delta.tokens, delta.logprobs, delta.finish_reason, delta.stop_reason)
        reader = self.readers[number]
        thought = reader.reasoning_tokens
        parts = reader.push(delta)
        if self.counts.reasoning is not None:
            self.counts.reasoning += reader.reasoning_tokens - thought
        if delta.finish_reason is not None and reader.has_failed_call:
            self._metrics.tool_parse_failures += 1
        return Piece(delta.text, delta.tokens, delta.logprobs, delta.finish_reason, delta.stop_reason, parts)

    async def _outputs(self, patience: float | None) -> list[Output]:
        """All outputs since the last call. Waits for the first one, at most `patience` seconds."""
        if not self._arrived:
            # Runs once per token. A plain timer takes a tenth of the time of `asyncio.timeout`.
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = None if patience is None else loop.call_later(patience, self._rouse)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        outputs, self._arrived = self._arrived, []
        return outputs

    def _deliver(self, output: Output) -> None:
        self._arrived.append(output)
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Join consecutive pieces of one choice's answer."""
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Piece(
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.tokens],
        [entry for entries in logprobs for entry in entries] if logprobs else None,
        pieces[-1].finish_reason,
        pieces[-1].stop_reason,
        [part for piece in pieces for part in piece.parts],
    )


def failure_of(output: Output) -> ApiError:
    """The error of a failed output."""
    message = output.error or "The request was aborted."
    if output.stop_reason == REFUSED:
        return invalid(message, None)
    if output.stop_reason == NO_ADAPTER:
        return adapter_failed(message)
    if output.stop_reason == DEADLINE:
        return deadline_exceeded(message)
    if output.stop_reason == ENGINE_GONE:
        return engine_gone(message)
    return engine_failed(message)
