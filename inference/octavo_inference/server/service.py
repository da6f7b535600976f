"""State that the endpoints share: the engine, the model's tokenizer and template, and whether requests are taken."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from tokenizers import Tokenizer

from octavo_inference.common.errors import RequestError
from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.core.request import Request
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.engine.output_router import OutputRouter
from octavo_inference.server import errors
from octavo_inference.server.errors import (
    ApiError,
    context_overflow,
    draining,
    invalid,
    model_not_found,
    not_ready,
)
from octavo_inference.server.generation import Generation
from octavo_inference.server.http import NOTES
from octavo_inference.server.metrics import ServerMetrics
from octavo_protocol.load import LoadReport

if TYPE_CHECKING:  # jinja is imported while the engine loads, not before
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message

Result = TypeVar("Result")

# Text is tokenised and templates are rendered here, so that a megabyte of prompt does not hold up the event loop.
TEXT_THREADS = 2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model's text side, without its weights. `template` None: no chat."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters has at least n divided by this many tokens."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)


@dataclass(slots=True, eq=False)
class Service:
    """State of a serving process. `names`: the model's name, then its aliases. `start_time` is Unix time."""

    names: tuple[str, ...]
    router: OutputRouter
    start_time: float
    tenant_header: bool = False
    """Only gateways reach this server, so their headers of tenants and priorities count."""
    clock: Callable[[], float] = time.monotonic
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, "octavo-text"))
    ready: bool = False
    """The model is loaded and has generated a token."""
    draining: bool = False
    cold_start: float = 0.0
    own_memory: int = 0
    """Bytes this process had in RAM when it was ready."""
    loaded: Loaded | None = None
    _sequence: int = 0

    def require(self, model: str) -> Loaded:
        """The model, for a request that names it. Raises `ApiError` for another name, or when none are taken."""
        if self.draining:
            raise self._reject(draining(), "draining")
        if not self.ready or self.loaded is None:
            raise self._reject(not_ready(), "not_ready")
        failure = self.router.failure
        if failure is not None:
            raise errors.engine_failed(str(failure))
        if model not in self.names:
            raise model_not_found(model, self.names[0])
        return self.loaded

    def generate(self, request: HttpRequest, loaded: Loaded, prompts: list[Request]) -> Generation:
        """Prompts of an HTTP request as a generation, to be entered."""
        return Generation(prompts, loaded.text.tokenizer, self.router, self.metrics, self.clock, request.scope[NOTES])

    def report(self, cache_after: int | None = None) -> LoadReport | None:
        """The load report of this pod, with what changed in its cache after a sequence; None while loading."""
        if self.loaded is None:
            return None
        self._sequence += 1
        return LoadReport(
            **msgspec.structs.asdict(self.router.stats),
            sequence=self._sequence,
            start_time=self.start_time,
            model=self.names[0],
            ready=self.is_ready,
            draining=self.draining,
            cold_start=self.cold_start,
            cache=None if cache_after is None else self.router.cache.since(cache_after),
        )

    def settings(self) -> dict[str, str]:
        """The engine's settings in effect, for people and dashboards; empty while the model is loading."""
        if self.loaded is None:
            return {}
        info = self.loaded.info
        sizes = ("max_running_requests", "max_batched_tokens", "max_model_len", "num_blocks", "swap_bytes")
        names = (
            "backend",
            "profile",
            "batching",
            "prefill_slowdown",
            "preemption",
            "cache_policy",
            "overlap",
            "cuda_graphs",
            *sizes,
        )
        return {name: str(getattr(info, name)) for name in names}

    def memory(self) -> dict[str, int]:
        """Bytes planned at start, by part; `in_all` is their sum, `reserve` what it leaves. Empty without a plan.

        On a GPU both count its memory alone, without swap and processes.
        """
        plan = None if self.loaded is None else self.loaded.info.memory
        if plan is None:
            return {}
        processes = plan.process + self.own_memory
        return {
            "weights": plan.weights,
            "kv_pool": plan.kv_pool,
            "activations": plan.activations,
            "swap": plan.swap,
            "processes": processes,
            "in_all": plan.grows + (0 if plan.device else processes),
            "reserve": max(0, plan.available - plan.grows),
        }

    def memory_in_use(self) -> dict[str, int]:
        """Bytes in RAM now, by process."""
        found = {"api": resident_memory(os.getpid())}
        if self.loaded is not None:
            info = self.loaded.info
            found["engine"] = resident_memory(info.pid)
            found |= {f"rank-{rank}": resident_memory(pid) for rank, pid in enumerate(info.rank_pids, 1)}
        return found

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome."""
        return self.ready and not self.draining and self.router.failure is None

    async def work(self, function: Callable[[], Result]) -> Result:
        """Run a function on text in a thread. Raises `ApiError` for a `RequestError`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, function)
        except RequestError as error:
            raise invalid(str(error), error.field) from None

    def _reject(self, error: ApiError, reason: str) -> ApiError:
        self.metrics.rejected[reason] += 1
        return error


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that answers."""

    text: ServedModel
    info: EngineInfo
    longest_token: int

    def chat_tokens(self, messages: list[Message]) -> list[int]:
        """Prompt tokens of a conversation. Raises `RequestError` or `ApiError`."""
        if self.text.template is None:
            raise invalid("This model has no chat template; use /v1/completions.", "messages")
        self._check_length(sum(len(text) for message in messages for text in message.values()), "messages")
        return self.text.template.tokens(messages)

    def prompt_tokens(self, prompt: str | list[int]) -> list[int]:
        """Prompt tokens of a completion. Raises `ApiError`.

        A raw prompt is the caller's own template: control tokens spelled out in it are control tokens.
        """
        if isinstance(prompt, str):
            self._check_length(len(prompt), "prompt")
            tokens = list(self.text.tokenizer.encode(prompt).ids)
        else:
            tokens = prompt
            unknown = next((token for token in tokens if token >= self.info.vocab_size), None)
            if unknown is not None:
                raise invalid(f"prompt: {unknown} is not a token; the vocabulary has {self.info.vocab_size}.", "prompt")
        if not tokens:
            raise invalid("prompt: it is empty; give at least one token.", "prompt")
        return tokens

    def answer_length(self, prompt: int, wanted: int | None, default: int | None, param: str) -> int:
        """How many tokens the answer may have. Raises `ApiError` when prompt and answer do not fit the model."""
        limit = self.info.max_model_len
        room = limit - prompt
        if wanted is not None and wanted > room:
            raise context_overflow(prompt, wanted, limit, param)
        if room < 1:
            raise context_overflow(prompt, 1, limit, param)
        return wanted or min(default or room, room)

    def _check_length(self, characters: int, param: str) -> None:
        # Without tokenising megabytes only to find that they are too many.
        at_least = characters // self.longest_token
        if at_least > self.info.max_model_len:
            raise context_overflow(at_least, 1, self.info.max_model_len, param)
