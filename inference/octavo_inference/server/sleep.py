"""Sleep and wake: an idle server gives weights and KV pool back and loads them again, without a new process.

Waking is faster than a start: processes, imports, compiled kernels and the tokenizer stay. The KV pool has the same
size as before; the prefix cache is empty.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.core.request import Output, Request, SamplingParams
from octavo_inference.engine.client import ProcessClient
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.engine.output_router import EngineDiedError, OutputRouter
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import ApiError, not_ready
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service
from octavo_protocol import names

log = logging.getLogger("octavo.server")
_POLL_SECONDS = 0.02


class SleepState(msgspec.Struct, frozen=True):
    """Whether the server sleeps, the resident bytes of its engine process, and the seconds that the change took."""

    sleeping: bool
    engine_resident_bytes: int
    seconds: float = 0.0


class Sleeper:
    """Puts the engine of a server to sleep and wakes it; one change at a time."""

    def __init__(self, service: Service, client: ProcessClient, patience: float) -> None:
        """`patience` is how many seconds running sequences may take to finish before a sleep is refused."""
        self._service = service
        self._client = client
        self._patience = patience
        self._changing = asyncio.Lock()

    def state(self, seconds: float = 0.0) -> SleepState:
        """The current state. Raises `ApiError` 503 while the model loads for the first time."""
        if self._service.loaded is None:
            raise not_ready()
        return SleepState(self._service.sleeping, self._service.memory_in_use()["engine"], seconds)

    async def sleep(self) -> SleepState:
        """Refuse new requests, let the running ones finish, and release weights and KV pool.

        Raises `ApiError`: 409 if sequences still run after the patience, or if several GPUs share the model; 503
        while it loads.
        """
        async with self._changing:
            state = self.state()
            if state.sleeping:
                return state
            info = self._service.loaded.info if self._service.loaded else None
            if info is not None and info.rank_pids:
                raise ApiError(409, "Sleep is not supported with tensor parallelism; delete the pod instead.")
            begin = time.monotonic()
            self._service.sleeping = True
            try:
                await self._until_idle(begin + self._patience)
                await self._client.sleep()
            except ApiError:
                self._service.sleeping = False
                raise
            state = self.state(round(time.monotonic() - begin, 3))
            log.info("asleep: the engine keeps %.0f MiB", state.engine_resident_bytes / 2**20)
            return state

    async def wake(self) -> SleepState:
        """Load weights and KV pool again and generate one token. Raises `EngineDiedError` if that fails."""
        async with self._changing:
            state = self.state()
            if not state.sleeping:
                return state
            begin = time.monotonic()
            info = await self._client.wake()
            await warm_up(self._client.router, info)
            self._service.woke(info)
            state = self.state(round(time.monotonic() - begin, 3))
            log.info("awake after %.2f s", state.seconds)
            return state

    async def _until_idle(self, end: float) -> None:
        router = self._service.router
        while router.sequences:
            if time.monotonic() >= end:
                raise ApiError(
                    409, f"{router.sequences} sequences still run; drain the server or try again later.", code="busy"
                )
            await asyncio.sleep(_POLL_SECONDS)


async def warm_up(router: OutputRouter, info: EngineInfo) -> None:
    """Generate one token, or embed one, through the whole path. Raises `EngineDiedError` if that fails."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    request = Request(id="warm-up", tokens=[min(1, info.vocab_size - 1)], sampling=sampling)
    if info.task != "generate":
        request = msgspec.structs.replace(request, pooling=info.pooling)
    router.submit([request], outputs.put_nowait)
    output = await outputs.get()
    if output.error is not None:
        raise router.failure or EngineDiedError(f"the first token could not be generated: {output.error}")


async def get_sleep(service: Service, _: HttpRequest) -> Response:
    """Get whether the server sleeps."""
    return json_response(msgspec.json.encode(_sleeper(service).state()))


async def post_sleep(service: Service, _: HttpRequest) -> Response:
    """Let running sequences finish, then give weights and KV pool back."""
    return json_response(msgspec.json.encode(await _sleeper(service).sleep()))


async def post_wake_up(service: Service, _: HttpRequest) -> Response:
    """Load weights and KV pool again, with the same sizes."""
    return json_response(msgspec.json.encode(await _sleeper(service).wake()))


def _sleeper(service: Service) -> Sleeper:
    if service.sleeper is None:
        raise not_ready()
    return service.sleeper


ENDPOINTS = (
    HttpEndpoint("GET", names.PATH_SLEEP, get_sleep, answer=SleepState, errors=(503,)),
    HttpEndpoint("POST", names.PATH_SLEEP, post_sleep, answer=SleepState, errors=(409, 503)),
    HttpEndpoint("POST", names.PATH_WAKE_UP, post_wake_up, answer=SleepState, errors=(503,)),
)
