"""One HTTP request's prompts in the engine, and their answers as they grow."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from octavo_inference.config.cache_policy import PolicyName
from octavo_inference.core.request import DEADLINE, QUEUE_FULL, REFUSED, Output, Request, SamplingParams
from octavo_inference.server.metrics import SequenceTimer
from octavo_inference.server.openai.errors import ApiError, deadline_exceeded, engine_failed, invalid, overloaded
from octavo_inference.server.service import Service
from octavo_inference.tokenizer.detokenizer import Delta, Detokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """What a request asks of the scheduler and the prefix cache; see `core.request.Request`."""

    salt: str = ""
    tenant: str = ""
    priority: int = 0
    cache_policy: PolicyName | None = None
    timeout: float | None = None
    request_id: str = ""


@dataclass(slots=True)
class _Sequence:
    choice: int
    text: Detokenizer
    timer: SequenceTimer


class Generation:
    """Submits prompts when made; `close` frees whatever still runs. Choice numbers are prompt * n + index."""

    def __init__(
        self,
        service: Service,
        tokenizer: Tokenizer,
        request_id: str,
        prompts: list[list[int]],
        sampling: list[SamplingParams],
        handling: Handling,
    ) -> None:
        self.prompt_tokens = sum(map(len, prompts))
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._service = service
        self._stream = service.client.hub.open_stream()
        self._sequences: dict[tuple[str, int], _Sequence] = {}
        self._cached: set[str] = set()
        self._failure: ApiError | None = None
        service.admit(sum(params.n for params in sampling))
        now = service.clock()
        service.metrics.prompt_tokens += self.prompt_tokens
        for number, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
            engine_id = f"{request_id}-{number}"
            for index in range(params.n):
                self._sequences[engine_id, index] = _Sequence(
                    number * params.n + index,
                    Detokenizer(tokenizer, prompt, params.stop, params.min_tokens),
                    SequenceTimer(service.metrics, now),
                )
            # Stop strings are found here, where the text is; the engine looks at tokens only.
            self._stream.submit(
                Request(
                    id=engine_id,
                    tokens=prompt,
                    sampling=params,
                    salt=handling.salt,
                    tenant=handling.tenant,
                    priority=handling.priority,
                    cache_policy=handling.cache_policy,
                    timeout=handling.timeout,
                    request_id=handling.request_id,
                )
            )

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return not self._sequences

    async def deltas(self, patience: float | None = None) -> list[tuple[int, Delta]]:
        """What came since the last call, as (choice, delta); empty after `patience` seconds of nothing.

        Raises `ApiError` when the engine could not go on with one of the sequences.
        """
        if self._failure is not None:
            raise self._failure
        outputs = await self._stream.outputs(patience)
        now = self._service.clock()
        deltas = []
        for output in outputs:
            sequence = self._sequences.get((output.id, output.index))
            if output.finish_reason in {"error", "abort"}:
                # Also for a sequence that is finished: the engine's death is told once per request.
                self._failure = _failure(output)
                break
            if sequence is not None:
                deltas.append((sequence.choice, self._advance(output, sequence, now)))
        if self._failure is not None and not deltas:
            raise self._failure
        return deltas

    def close(self) -> None:
        """Abort what still runs, so that its rows and blocks are free before the next step."""
        self._stream.close()
        now = self._service.clock()
        for sequence in self._sequences.values():
            sequence.timer.finish("abort" if self._failure is None else "error", now)
        self._sequences.clear()

    def _advance(self, output: Output, sequence: _Sequence, now: float) -> Delta:
        delta = sequence.text.push(output)
        sequence.timer.tokens(len(delta.tokens), now)
        self.completion_tokens += len(delta.tokens)
        if output.id not in self._cached and delta.tokens:
            self._cached.add(output.id)
            self.cached_tokens += output.cached_tokens
            self._service.metrics.cached_tokens += output.cached_tokens
        if delta.finish_reason is not None:
            if output.finish_reason is None:
                self._stream.abort(output.id, output.index)
            sequence.timer.finish(delta.finish_reason, now)
            del self._sequences[output.id, output.index]
        return delta


def _failure(output: Output) -> ApiError:
    message = output.error or "The request was aborted."
    if output.stop_reason == REFUSED:
        return invalid(message, None)
    if output.stop_reason == QUEUE_FULL:
        return overloaded(0)
    if output.stop_reason == DEADLINE:
        return deadline_exceeded(message)
    return engine_failed(message)
