"""The server over an engine that answers with a fixed text, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import pytest
from starlette.types import ASGIApp
from tests.unit.api.thread_client import ThreadClient
from tokenizers import Tokenizer

from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.core.counters import Counters
from octavo_inference.core.request import Output, Request, TokenLogprobs
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.model_loader import TextModel as ModelText
from octavo_inference.model_loader import load_text
from octavo_inference.models.task import Task
from octavo_inference.server.admin import admin_app
from octavo_inference.server.auth import Keys
from octavo_inference.server.lifecycle import HttpServer
from octavo_inference.server.model_text import ServedModel
from octavo_inference.server.openai_responses.store import ResponseStore, StoreLimits
from octavo_inference.server.public import public_app
from octavo_inference.server.service import Loaded, Service
from octavo_inference.tokenizer.chat_template import ChatTemplate
from octavo_protocol.load import EngineStats

EOS = 2
STORE = StoreLimits(entries=100, bytes=2**20, ttl=60.0, tenant_percent=100)
ANSWER = "The capital of France is Paris. \N{CAT FACE} It lies on the Seine."


@dataclass
class FakeSequence:
    request: Request
    index: int
    left: list[int]
    done: int = 0


@dataclass
class FakeAdapters:
    """Adapters that are there at once, or after `release`; those in a folder `bad` are not."""

    states: dict[str, EngineAdapter] = field(default_factory=dict)
    offered: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    changed: bool = False
    hold: bool = False

    def offer(self, key: str, path: str) -> None:
        self.offered.append(path)
        if Path(path).name == "bad":
            self.bad.add(key)
        self.states[key] = EngineAdapter(key=key, state="loading") if self.hold else self._read(key)
        self.changed = True

    def release(self) -> None:
        """Let those that are being read be there with the next step."""
        self.hold = False
        self.states = {key: self._read(key) for key in self.states}
        self.changed = True

    def _read(self, key: str) -> EngineAdapter:
        if key in self.bad:
            return EngineAdapter(key=key, state="failed", failure="it is bad")
        return EngineAdapter(key=key, state="loaded", rank=4, digest=key)

    def withdraw(self, key: str) -> None:
        self.states.pop(key, None)
        self.changed = True

    def close(self) -> None:
        self.states.clear()

    def changes(self) -> list[EngineAdapter] | None:
        changed, self.changed = self.changed, False
        return list(self.states.values()) if changed else None


@dataclass
class FakeEngine:
    """Gives every sequence the tokens of `answer`, one a step, then end-of-sequence.

    `hold` stops it between steps; `pace` is how long a step takes; it refuses nothing, however many wait.
    """

    tokenizer: Tokenizer
    answer: str = ANSWER
    hold: bool = False
    pace: float = 0.0
    max_queued: int = 100
    stalled: bool = False
    fail_at: int | None = None
    steps: int = 0
    rests: int = 0
    resets: int = 0
    counters: Counters = field(default_factory=Counters)
    sequences: list[FakeSequence] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    aborted: list[tuple[str, int | None]] = field(default_factory=list)
    changes: list[tuple[bytes, bytes]] = field(default_factory=list)
    grammar_compiler: None = None
    speculation: None = None
    adapters: FakeAdapters = field(default_factory=FakeAdapters)

    @property
    def has_work(self) -> bool:
        return bool(self.sequences) and not self.hold

    def delay(self) -> float:
        return 0.0

    def on_idle(self) -> None:
        self.rests += 1

    def reset_cache(self) -> None:
        self.resets += 1

    def submit(self, request: Request) -> None:
        self.seen.append(request)
        answer = self.tokenizer.encode(self.answer, add_special_tokens=False).ids
        for index in range(request.sampling.n):
            left = answer * 50 if request.sampling.ignore_eos else [*answer, EOS]
            self.sequences.append(FakeSequence(request, index, list(left)))

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))
        self.sequences = [s for s in self.sequences if s.request.id != request_id or index not in (None, s.index)]

    def step(self) -> list[Output]:
        threading.Event().wait(self.pace)
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("the device is gone")
        return [self._advance(sequence) for sequence in self.sequences[:]]

    def _advance(self, sequence: FakeSequence) -> Output:
        if sequence.request.pooling is not None:
            self.sequences.remove(sequence)
            vector = [1.0 + sequence.request.tokens[0] % 7, 2.0, 2.0, len(sequence.request.tokens)]
            return Output(
                id=sequence.request.id,
                index=0,
                tokens=[],
                finish_reason="stop",
                cached_tokens=7,
                embedding=array("f", vector).tobytes(),
            )
        token = sequence.left.pop(0)
        sequence.done += 1
        sampling = sequence.request.sampling
        reason = None
        if token == EOS or token in sampling.stop_token_ids:
            reason = "stop"
        elif sequence.done == sampling.max_tokens:
            reason = "length"
        if reason is not None:
            self.sequences.remove(sequence)
        logprobs = prompt_logprobs = None
        if sampling.logprob_token_ids:
            named = list(sampling.logprob_token_ids)
            logprobs = [TokenLogprobs(-0.5, 1, named, [-0.1 * len(sequence.request.tokens), -2.0][: len(named)])]
        elif sampling.logprobs is not None:
            logprobs = [_scored(token, sampling.logprobs)]
        if sampling.prompt_logprobs is not None and sequence.done == 1 and sequence.index == 0:
            prompt = sequence.request.tokens[1:]
            prompt_logprobs = [None, *(_scored(token, sampling.prompt_logprobs) for token in prompt)]
        return Output(
            id=sequence.request.id,
            index=sequence.index,
            tokens=[token],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            stop_reason=token if reason == "stop" and token != EOS else None,
            cached_tokens=7,
        )

    def cache_changes(self) -> tuple[bytes, bytes]:
        return self.changes.pop(0) if self.changes else (b"", b"")

    def stats(self) -> EngineStats:
        return EngineStats(
            block_size=32,
            blocks_total=64,
            blocks_pinned=len(self.sequences),
            blocks_cached=0,
            running=len(self.sequences),
            waiting=0,
            waiting_tokens=0,
            uncached_prompt_tokens=0,
            oldest_wait=0.0,
            preemptions=0,
            requests=len(self.seen),
            prompt_tokens=0,
            generation_tokens=0,
            prefix_hit_tokens=0,
            max_running=8,
            max_batched_tokens=64,
            max_waiting=self.max_queued,
        )


def _scored(token: int, alternatives: int) -> TokenLogprobs:
    """A chosen token that is never among its alternatives."""
    others = [100 + i if 100 + i < token else 101 + i for i in range(alternatives)]
    return TokenLogprobs(-0.5, 1, others, [-0.25 - i for i in range(len(others))])


@dataclass
class Server:
    """A running server: `api` and `admin` are HTTP clients of its two ports."""

    engine: FakeEngine
    client: ThreadClient
    service: Service
    api: httpx.AsyncClient
    admin: httpx.AsyncClient
    drained: list[bool]

    def release(self) -> None:
        """Let a held engine go on."""
        self.engine.hold = False
        with self.client._condition:
            self.client._condition.notify()

    async def chat(self, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": "m", "messages": messages} | fields
        return await self.api.post("/v1/chat/completions", json=body, headers=headers)

    async def respond(self, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
        body = {"model": "m", "input": "What is the capital of France?"} | fields
        return await self.api.post("/v1/responses", json=body, headers=headers)

    async def complete(self, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
        return await self.api.post("/v1/completions", json={"model": "m", "prompt": "Once"} | fields, headers=headers)


@pytest.fixture(scope="session")
def model() -> ModelText:
    return load_text("smollm2")


@pytest.fixture(scope="session")
def tokenizer(model: ModelText) -> Tokenizer:
    return model.tokenizer


@pytest.fixture(scope="session")
def template(model: ModelText) -> ChatTemplate:
    assert model.chat_template
    return ChatTemplate(model.chat_template, model.tokenizer)


@pytest.fixture
def fake_engine(tokenizer: Tokenizer) -> FakeEngine:
    return FakeEngine(tokenizer)


@contextlib.asynccontextmanager
async def _called(apps: list[ASGIApp]) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients that call the applications without a socket: answers come whole."""
    transports = [httpx.ASGITransport(app, raise_app_exceptions=False) for app in apps]  # type: ignore[arg-type]
    yield [httpx.AsyncClient(base_url="http://test", transport=transport) for transport in transports]


@contextlib.asynccontextmanager
async def _listening(apps: list[ASGIApp]) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients that connect over sockets: streams, disconnects and backpressure are real."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in apps]
    servers = [HttpServer(app, listening) for app, listening in zip(apps, sockets, strict=True)]
    tasks = [asyncio.create_task(server.run()) for server in servers]
    urls = [f"http://127.0.0.1:{listening.getsockname()[1]}" for listening in sockets]
    try:
        async with httpx.AsyncClient(base_url=urls[0]) as api, httpx.AsyncClient(base_url=urls[1]) as admin:
            yield [api, admin]
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve(tokenizer: Tokenizer, template: ChatTemplate) -> Serve:
    @contextlib.asynccontextmanager
    async def start(
        *,
        keys: Keys | None = None,
        ready: bool = True,
        tenant_header: bool = False,
        prefix_caching: bool = True,
        hidden_size: int = 4,
        relevance: Literal["embedding", "answer"] = "embedding",
        task: Task = "generate",
        normalized: bool = True,
        listen: bool = False,
        store: StoreLimits = STORE,
        **engine_fields: object,
    ) -> AsyncIterator[Server]:
        engine = FakeEngine(tokenizer, **engine_fields)  # type: ignore[arg-type]
        info = EngineInfo(
            backend="fake",
            max_model_len=512,
            vocab_size=tokenizer.get_vocab_size(),
            block_size=32,
            num_blocks=64,
            kv_bytes=0,
            max_running_requests=8,
            max_batched_tokens=64,
            threads=1,
            prefix_caching=prefix_caching,
            model_digest="weights",
            hidden_size=hidden_size,
            task=task,
            pooling="last" if task == "generate" else "cls",
        )
        client = ThreadClient(engine, info)
        service = Service(
            names=("m", "alias"),
            router=client.router,
            start_time=1.0,
            tenant_header=tenant_header,
            replica="pod-1",
            responses=ResponseStore(store, time.monotonic),
        )
        await client.start()
        special_tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        text = ServedModel(
            tokenizer, template, special_tokens=special_tokens, relevance=relevance, normalized=normalized
        )
        if ready:
            service.loaded = Loaded(text, info, text.longest_token)
            service.ready = True
        drained: list[bool] = []
        apps = [public_app(service, keys, "1.2.3"), admin_app(service, None, "1.2.3", lambda: drained.append(True))]
        try:
            async with (_listening if listen else _called)(apps) as (api, admin):
                yield Server(engine, client, service, api, admin, drained)
        finally:
            engine.hold = False
            engine.sequences.clear()
            await client.close()
            service.texts.close()

    return start
