"""State shared by the endpoints: the engine, the model's tokenizer and template, and readiness for requests."""

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
from octavo_inference.config.engine import DEFAULT_POOLING, PoolingName, RelevanceName
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

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message

Result = TypeVar("Result")

# Tokenisation and templates run in these threads, so that a long prompt does not block the event loop.
TEXT_THREADS = 2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Tokenizer and chat template of the model, without its weights. If `template` is None, there is no chat.

    `pooling` is that of its embeddings, `relevance` the rule of /score and /rerank.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    pooling: PoolingName = DEFAULT_POOLING
    relevance: RelevanceName = "embedding"

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters has at least n divided by this number of tokens."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)


@dataclass(slots=True, eq=False)
class Service:
    """State of a serving process. `names`: the model's name, then its aliases. `start_time` is Unix time."""

    names: tuple[str, ...]
    router: OutputRouter
    start_time: float
    tenant_header: bool = False
    """True if only gateways have access to this server, so that their tenant and priority headers are trusted."""
    clock: Callable[[], float] = time.monotonic
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, "octavo-text"))
    ready: bool = False
    """True once the model is loaded and has generated a token."""
    draining: bool = False
    cold_start: float = 0.0
    own_memory: int = 0
    """Bytes this process had in RAM when it was ready."""
    loaded: Loaded | None = None
    _sequence: int = 0

    def require(self, model: str) -> Loaded:
        """The loaded model, if it has this name. Raises `ApiError` for another name, or if no requests are accepted."""
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
        """Create a generation for the prompts of an HTTP request; use it as a context manager."""
        return Generation(prompts, loaded.text.tokenizer, self.router, self.metrics, self.clock, request.scope[NOTES])

    def report(self, cache_after: int | None = None) -> LoadReport | None:
        """The load report of this pod, with the cache changes after a sequence. None while loading."""
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
        """The engine's settings in effect, for display; empty while the model is loading."""
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
        """Bytes planned at start, by part; `in_all` is their sum, `reserve` the rest. Empty without a plan.

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
        """Current resident memory in bytes, by process."""
        found = {"api": resident_memory(os.getpid())}
        if self.loaded is not None:
            info = self.loaded.info
            found["engine"] = resident_memory(info.pid)
            found |= {f"rank-{rank}": resident_memory(pid) for rank, pid in enumerate(info.rank_pids, 1)}
        return found

    @property
    def is_ready(self) -> bool:
        """True if new requests are accepted."""
        return self.ready and not self.draining and self.router.failure is None

    async def work(self, function: Callable[[], Result]) -> Result:
        """Run a text function in a thread. Raises `ApiError` for a `RequestError`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, function)
        except RequestError as error:
            raise invalid(str(error), error.field) from None

    def _reject(self, error: ApiError, reason: str) -> ApiError:
        self.metrics.rejected[reason] += 1
        return error


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model that can serve requests."""

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

        The caller applies the template of a raw prompt, so control tokens in its text become control tokens.
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
        """Maximum number of tokens of the answer. Raises `ApiError` if prompt and answer exceed the model's context."""
        limit = self.info.max_model_len
        room = limit - prompt
        if wanted is not None and wanted > room:
            raise context_overflow(prompt, wanted, limit, param)
        if room < 1:
            raise context_overflow(prompt, 1, limit, param)
        return wanted or min(default or room, room)

    def _check_length(self, characters: int, param: str) -> None:
        # Reject a text that is surely too long without tokenising megabytes.
        at_least = characters // self.longest_token
        if at_least > self.info.max_model_len:
            raise context_overflow(at_least, 1, self.info.max_model_len, param)
