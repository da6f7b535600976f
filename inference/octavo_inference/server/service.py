"""State shared by the endpoints: the engine, the model's tokenizer and template, and readiness for requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

import msgspec
from starlette.requests import Request as HttpRequest

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.common.allocator import trim
from octavo_inference.common.errors import RequestError
from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.config.engine import PoolingName
from octavo_inference.core.request import ADAPTER_UNUSABLE, Request
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.engine.output_router import OutputRouter
from octavo_inference.server import errors
from octavo_inference.server.adapters import Adapters
from octavo_inference.server.errors import (
    ApiError,
    client_gone,
    context_overflow,
    draining,
    invalid,
    model_not_found,
    not_ready,
)
from octavo_inference.server.generation import Generation
from octavo_inference.server.grammars.checks import PLANNED_BYTES, GrammarChecks
from octavo_inference.server.grammars.messages import ModelTokens
from octavo_inference.server.http import NOTES, RESERVATION, until_disconnect
from octavo_inference.server.intake import BodyReservation, Intake
from octavo_inference.server.metrics import ServerMetrics
from octavo_inference.server.model_text import ServedModel, ServedText
from octavo_inference.server.openai_responses.store import ResponseStore, StoreLimits
from octavo_inference.server.text_pool import TextPool
from octavo_inference.tokenizer.encoding import PromptTooLongError, ids_within, token_ids
from octavo_protocol.load import LoadReport

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.server.profile import Profiler
    from octavo_inference.server.sleep import Sleeper
    from octavo_inference.tokenizer.chat_template import ChatTemplate, Message, TemplateOptions

Result = TypeVar("Result")

# Tokenising a body up to this size takes so little time that the client is not watched meanwhile.
_SHORT_BODY = 16 * 1024
# The start of a list of token ids. Inside a JSON string, the quotes would have backslashes.
_IDS = re.compile(rb'"(prompt|input|tokens)"\s*:\s*\[\s*(\d)')


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
    texts: TextPool = field(default_factory=TextPool)
    """Tokenisation and templates run here, so that a long prompt does not block the event loop."""
    intake: Intake = field(init=False)
    ready: bool = False
    """True once the model is loaded and has generated a token."""
    draining: bool = False
    sleeping: bool = False
    """True from the start of a sleep until the model is loaded again. New requests get 503."""
    cold_start: float = 0.0
    own_memory: int = 0
    """Bytes this process had in RAM when it was ready."""
    loaded: Loaded | None = None
    sleeper: Sleeper | None = None
    """Gives the engine's memory back and loads it again; None if the engine has no process of its own."""
    profiler: Profiler | None = None
    """Profiles the engine; None if the engine has no process of its own."""
    replica: str = ""
    """Name of this process's host, which is the name of its pod: part of the ids of stored responses."""
    responses: ResponseStore = field(default_factory=lambda: ResponseStore(StoreLimits(), time.monotonic))
    adapter_root: Path | None = None
    """The folder that adapters loaded by request may be in."""
    adapters: Adapters[ServedText] = field(init=False)
    grammar_checks: GrammarChecks = field(init=False)
    """Tries the grammars of requests before the engine gets them."""
    _sequence: int = 0
    _trim: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.intake = Intake(on_refusal=self._count_refused_body, on_large=self._trim_later)
        self.router.on_step = self.metrics.step
        self.adapters = Adapters(self.router, self.names)
        self.grammar_checks = GrammarChecks(self._grammar_tokens)

    async def require(self, model: str) -> Loaded:
        """The loaded model, with the adapter of this name if it is one.

        Raises `ApiError` for another name, or if no requests are accepted.
        """
        while True:
            loaded = self._accepting()
            if model in self.names:
                return loaded
            adapter = self.adapters.find(model)
            if adapter is None:
                raise model_not_found(model, self.names[0])
            if adapter.reading is None or adapter.reading.done():
                break
            await asyncio.wait((adapter.reading,))
        if adapter.failure:
            raise errors.adapter_failed(ADAPTER_UNUSABLE)
        found = replace(loaded, adapter=adapter.key, adapter_digest=adapter.state.digest)
        if adapter.text is None:
            return found
        own = adapter.text
        return replace(found, text=own.model, longest_token=own.longest_token, ends=own.ends)

    def _accepting(self) -> Loaded:
        """The loaded model. Raises `ApiError` if no requests are accepted."""
        if self.draining:
            raise self._reject(draining(), "draining")
        if not self.ready or self.loaded is None:
            raise self._reject(not_ready(), "not_ready")
        if self.sleeping:
            raise self._reject(errors.sleeping(), "sleeping")
        failure = self.router.failure
        if failure is not None:
            raise errors.engine_gone(failure.for_clients)
        return self.loaded

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the model, then those of the adapters that can be used."""
        return (*self.names, *(adapter.name for adapter in self.adapters.all if not adapter.failure))

    async def require_generator(self, model: str) -> Loaded:
        """Like `require`, for requests for text. Raises `ApiError` if the model generates none."""
        loaded = await self.require(model)
        if loaded.info.task != "generate":
            raise errors.generates_nothing(model, loaded.info.task)
        return loaded

    def generate(
        self, request: HttpRequest, loaded: Loaded, prompts: list[Request], plan: AnswerPlan | None = None
    ) -> Generation:
        """Create a generation for the prompts of an HTTP request; use it as a context manager.

        Answers are read as `plan` says, which is that of one prompt; None: each is one text.
        """
        notes = request.scope[NOTES]
        return Generation(prompts, loaded.text.tokenizer, self.router, self.metrics, self.clock, notes, plan)

    def woke(self, info: EngineInfo) -> None:
        """Accept requests again. The engine's counters restart at 0, so the load report has a new start time."""
        if self.loaded is not None:
            self.loaded = Loaded(self.loaded.text, info, self.loaded.longest_token)
            self.adapters.offer_again()
        self.start_time = time.time()
        self.sleeping = False

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
            adapters=self.adapters.reports(),
            max_loaded_adapters=self.adapters.max_loaded,
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

    def cache_config(self) -> dict[str, str]:
        """Sizes of the KV pool, by the names that vLLM gives them, on CPUs too; empty while the model is loading."""
        if self.loaded is None:
            return {}
        info = self.loaded.info
        return {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "num_cpu_blocks": str(info.swap_bytes * info.num_blocks // info.kv_bytes if info.kv_bytes else 0),
            "enable_prefix_caching": str(info.prefix_caching),
        }

    def memory(self) -> dict[str, int]:
        """Bytes planned at start, by part; `in_all` is their sum, `reserve` the rest. Empty without a plan.

        On a GPU both count its memory alone, without swap and processes.
        """
        plan = None if self.loaded is None else self.loaded.info.memory
        if plan is None:
            return {}
        processes = plan.process + self.own_memory + self.responses.planned_bytes + PLANNED_BYTES
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
        if self.grammar_checks.resident:
            found["grammars"] = self.grammar_checks.resident
        if self.loaded is not None:
            info = self.loaded.info
            found["engine"] = resident_memory(info.pid)
            found |= {f"rank-{rank}": resident_memory(pid) for rank, pid in enumerate(info.rank_pids, 1)}
        return found

    @property
    def is_ready(self) -> bool:
        """True if new requests are accepted."""
        return self.ready and not self.draining and not self.sleeping and self.router.failure is None

    def check_ids(self, data: bytearray) -> None:
        """Reject a prompt of too many token ids before the body is decoded, which takes long. Raises `ApiError` 400."""
        if self.loaded is None or b'"truncate_prompt_tokens"' in data:
            return
        if found := _IDS.search(data):
            count = data.count(b",", found.start(2), data.find(b"]", found.start(2))) + 1
            if count > self.loaded.info.max_model_len:
                raise context_overflow(count, 1, self.loaded.info.max_model_len, found[1].decode())

    def check_sequences(self, count: int, field: str = "n") -> None:
        """Reject a request with more sequences than an empty server accepts, before its prompts are tokenised.

        Raises `ApiError` 400 for `field`, the one that says how many sequences a prompt has.
        """
        try:
            self.router.check_fits(count, field)
        except RequestError as error:
            raise invalid(str(error), error.field) from None

    async def work(self, function: Callable[[], Result]) -> Result:
        """Run a short text function in a thread. Raises `ApiError` for a `RequestError`."""
        [result] = await self._texts("", [function])
        return result

    async def tokenise(self, request: HttpRequest, steps: Iterable[Callable[[], Result]]) -> list[Result]:
        """Run text functions of a request in threads, one after the other; each may take as long as one prompt takes.

        Others get their turn in between. If the client disconnects, those that have not begun are dropped. Afterwards
        the request's body counts no more. Raises `ApiError` for a `RequestError`, and 499 for a client that has gone.
        """
        reservation: BodyReservation = request.scope[RESERVATION]
        work = self._texts(reservation.client, steps)
        try:
            if reservation.size <= _SHORT_BODY and self.texts.is_idle:
                return await work
            results = await until_disconnect(request.receive, work)
        finally:
            reservation.release()
        if results is None:
            raise client_gone()
        return results

    async def _texts(self, client: str, steps: Iterable[Callable[[], Result]]) -> list[Result]:
        try:
            return await self.texts.run(client, steps)
        except RequestError as error:
            raise invalid(str(error), error.field) from None

    def _grammar_tokens(self) -> ModelTokens:
        if self.loaded is None:
            raise RuntimeError("no model is loaded")
        text, size = self.loaded.text, self.loaded.info.vocab_size + self.loaded.info.added_ids
        end = text.tokenizer.token_to_id(text.special_tokens.get("eos_token", ""))
        return ModelTokens(tokenizer=text.tokenizer.to_str(), size=size, ends=(size - 1 if end is None else end,))

    def _count_refused_body(self) -> None:
        self.metrics.rejected["intake_full"] += 1

    def _trim_later(self) -> None:
        """Return free memory to the system soon, at most once a second."""
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(1.0, self._start_trim)

    def _start_trim(self) -> None:
        self._trim = None
        with contextlib.suppress(RuntimeError):  # the pool is closed
            asyncio.get_running_loop().run_in_executor(self.texts.threads, trim)

    def _reject(self, error: ApiError, reason: str) -> ApiError:
        self.metrics.rejected[reason] += 1
        return error


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model that can serve requests."""

    text: ServedModel
    info: EngineInfo
    longest_token: int
    adapter: str = ""
    """The engine's key of the adapter that a request names; "" for the model itself."""
    adapter_digest: str = ""
    """Sets the adapter's prefixes apart; "" until it is read."""
    ends: tuple[int, ...] = ()
    """Ids that end the adapter's answers, besides the model's."""

    @property
    def vocab_size(self) -> int:
        """Ids that a request may name. The engine knows which of those behind the model's an adapter has."""
        return self.info.vocab_size + (self.info.added_ids if self.adapter else 0)

    @property
    def pooling(self) -> PoolingName:
        """The pooling of hidden states; that of a model that scores pairs is fixed."""
        return self.info.pooling if self.text.pooling is None or self.info.task == "score" else self.text.pooling

    def chat_tokens(
        self, messages: list[Message], *, bounded: bool = True, **options: Unpack[TemplateOptions]
    ) -> list[int]:
        """Prompt tokens of a conversation. Raises `RequestError` or `ApiError`.

        With `bounded`, a text that surely exceeds the model's context is refused before it is tokenised. `options` are
        further arguments of the chat template.
        """
        template = self.template("messages")
        if bounded:
            self._check_characters(sum(map(_characters, messages)), "messages")
        limit = self.info.max_model_len
        try:
            return template.tokens(messages, max_tokens=limit if bounded else None, **options)
        except PromptTooLongError as error:
            raise context_overflow(error.tokens, 1, limit, "messages") from None

    def template(self, param: str) -> ChatTemplate:
        """The model's chat template. Raises `ApiError` for this field if it has none."""
        if self.text.template is None:
            raise invalid("This model has no chat template; use /v1/completions.", param)
        return self.text.template

    def prompt_tokens(self, prompt: str | list[int], *, bounded: bool = True) -> list[int]:
        """Prompt tokens of a completion. Raises `ApiError`. `bounded` as in `chat_tokens`.

        The caller applies the template of a raw prompt, so control tokens in its text become control tokens.
        """
        if isinstance(prompt, str):
            if bounded:
                self._check_length(prompt, "prompt")
            limit = self.info.max_model_len
            try:
                tokens = ids_within(self.text.tokenizer, prompt, limit if bounded else None)
            except PromptTooLongError as error:
                raise context_overflow(error.tokens, 1, limit, "prompt") from None
        else:
            if bounded:
                self._check_length(prompt, "prompt")
            tokens = prompt
            unknown = max(tokens, default=0)
            if unknown >= self.vocab_size:
                raise invalid(f"prompt: {unknown} is not a token; the vocabulary has {self.vocab_size}.", "prompt")
        if not tokens:
            raise invalid("prompt: it is empty; give at least one token.", "prompt")
        return tokens

    def truncated(self, tokens: list[int], limit: int | None, answer: int | None) -> list[int]:
        """The last `limit` prompt tokens: all without a limit, and with -1 as many as leave room for the answer."""
        if limit is None:
            return tokens
        keep = max(1, self.info.max_model_len - (answer or 1)) if limit < 0 else limit
        return tokens[-keep:]

    def answer_length(self, prompt: int, wanted: int | None, default: int | None, param: str) -> int:
        """Maximum number of tokens of the answer. Raises `ApiError` if prompt and answer exceed the model's context."""
        limit = self.info.max_model_len
        room = limit - prompt
        if wanted is not None and wanted > room:
            raise context_overflow(prompt, wanted, limit, param)
        if room < 1:
            raise context_overflow(prompt, 1, limit, param)
        return wanted or min(default or room, room)

    def text_tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a text, which may exceed the model's context. Raises `ApiError` if it surely does."""
        self._check_characters(len(text), "prompt")
        return token_ids(self.text.tokenizer, text, add_special_tokens=add_special_tokens)

    def check_prompts(self, prompts: Iterable[str | list[int]]) -> None:
        """Reject a request if one of its prompts is surely too long, without tokenising any. Raises `ApiError`."""
        for prompt in prompts:
            self._check_length(prompt, "prompt")

    def _check_length(self, prompt: str | list[int], param: str) -> None:
        if isinstance(prompt, str):
            self._check_characters(len(prompt), param)
        elif len(prompt) > self.info.max_model_len:
            raise context_overflow(len(prompt), 1, self.info.max_model_len, param)

    def _check_characters(self, characters: int, param: str) -> None:
        # Reject a text that is surely too long without tokenising megabytes.
        at_least = characters // self.longest_token
        if at_least > self.info.max_model_len:
            raise context_overflow(at_least, 1, self.info.max_model_len, param)


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0
