"""The lifecycle of a server process: ports, engine, readiness, drain, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from octavo_inference.answers.formats import answer_formats
from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.checkpoints.sentence_transformers import declared_pooling, declares_normalized
from octavo_inference.common.allocator import limit_heap
from octavo_inference.common.errors import ModelError, OctavoError
from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.common.timeline import Timeline
from octavo_inference.engine.client import ProcessClient
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.engine.output_router import SHUTTING_DOWN, EngineDiedError
from octavo_inference.engine.spawn import EngineProcess
from octavo_inference.server.adapter_list import AdapterList
from octavo_inference.server.admin import admin_app
from octavo_inference.server.auth import Keys
from octavo_inference.server.connection import HEAD_SECONDS, ClientConnection
from octavo_inference.server.model_text import ServedModel, ServedText, served_text, warn_of_other_base
from octavo_inference.server.openai_responses.store import ResponseStore, StoreLimits, expire_regularly
from octavo_inference.server.profile import Profiler
from octavo_inference.server.public import public_app
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.sleep import Sleeper, warm_up
from octavo_inference.server.sockets import Sockets
from octavo_inference.tokenizer.assets import TokenizerAssets, check_vocabulary, load_assets
from octavo_protocol.server_settings import ServerSettings

log = logging.getLogger("octavo.server")

# Time to send the last events to clients.
_SHUTDOWN_SECONDS = 5
# While serving, the API process lowers its priority: CPU time of the engine is worth more than that of HTTP.
_NICENESS = 10
_SWITCH_SECONDS = 0.001
# From ready to the start of the grammar process.
_GRAMMARS_SECONDS = 1.0


def run(
    settings: ServerSettings,
    sockets: Sockets,
    keys: Keys | None,
    admin_keys: Keys | None,
    child: EngineProcess,
    timeline: Timeline,
) -> int:
    """Serve until a signal. Returns the exit status: 0 drained, 1 the engine failed to load or died, 70 it hung."""
    limit_heap()
    # The text threads already compute in parallel, and more threads would each keep memory.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A text thread that runs Python code gives way to the event loop after this time.
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(settings, sockets, child, timeline, keys, admin_keys))


async def _main(
    settings: ServerSettings,
    sockets: Sockets,
    child: EngineProcess,
    timeline: Timeline,
    keys: Keys | None,
    admin_keys: Keys | None,
) -> int:
    client = ProcessClient(child, stall_seconds=settings.stall_seconds)
    service = Service(
        names=settings.served_model_names or (_default_name(settings.engine.model),),
        router=client.router,
        start_time=time.time() - timeline.now(),
        tenant_header=settings.tenant_header,
        replica=socket.gethostname(),
        responses=ResponseStore(
            StoreLimits(
                settings.response_store_entries,
                settings.response_store_memory,
                settings.response_store_ttl,
                settings.response_store_tenant_percent,
            ),
            time.monotonic,
        ),
    )
    service.adapter_root = None if settings.adapter_root is None else Path(settings.adapter_root)
    process = _Process(service, settings.drain_timeout)
    service.sleeper = Sleeper(service, client, settings.drain_timeout)
    service.profiler = Profiler(service, client.step_times)
    release = version("octavo")
    servers = [
        HttpServer(public_app(service, keys, release, page=settings.page), sockets.api),
        HttpServer(admin_app(service, admin_keys, release, process.drain), sockets.admin),
    ]
    process.handle_signals()
    serving = [asyncio.create_task(server.run()) for server in servers]
    expiring = asyncio.create_task(expire_regularly(service.responses))
    timeline.mark("HTTP")
    cause: OctavoError | None = None
    try:
        starting = asyncio.create_task(_start(service, client, settings, timeline, sockets))
        status = await process.wait(starting)
    except OctavoError as error:
        cause, status = error, error.status if isinstance(error, EngineDiedError) else 1
    expiring.cancel()
    for server in servers:
        server.should_exit = True
    await asyncio.wait(serving, timeout=_SHUTDOWN_SECONDS + 1)
    await service.grammar_checks.close()
    await client.close()
    service.texts.close()
    if cause is not None:
        log.error("%s", cause)  # after the engine process has ended, so that the last log line is the cause
    return status


class _Process:
    """Signal handling and drain. The first SIGTERM or SIGINT drains and then ends; the second ends at once."""

    def __init__(self, service: Service, drain_timeout: float) -> None:
        self._service = service
        self._drain_timeout = drain_timeout
        self._terminate = asyncio.Event()
        self._now = asyncio.Event()

    def handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def drain(self) -> None:
        """Reject new requests. Running ones continue, and so does the process until a signal ends it."""
        if not self._service.draining:
            self._service.draining = True
            log.info("draining: %d sequences to finish", self._service.router.sequences)

    def _signalled(self, number: int) -> None:
        if self._terminate.is_set():
            self._now.set()
            return
        log.info("%s received", signal.Signals(number).name)
        self._terminate.set()
        self.drain()

    async def wait(self, starting: asyncio.Task[None]) -> int:
        """Wait for the end of a drain. Raises the error that ended the start or the engine otherwise."""
        failed = asyncio.create_task(self._service.router.failed())
        terminate = asyncio.create_task(self._terminate.wait())
        waiting: set[asyncio.Task[Any]] = {starting, failed, terminate}
        try:
            while not terminate.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if starting in done:
                    starting.result()
                if failed in done:
                    raise failed.result()
            await self._finish(failed)
        finally:
            tasks = (starting, failed, terminate)
            for task in tasks:
                task.cancel()
            # One failure can end several of the tasks: the first error is raised, the others must not be logged.
            await asyncio.gather(*tasks, return_exceptions=True)
        return 0

    async def _finish(self, failed: asyncio.Task[EngineDiedError]) -> None:
        router = self._service.router
        if not await _until(lambda: not router.sequences or self._now.is_set() or failed.done(), self._drain_timeout):
            log.warning("drain timeout of %g s: %d sequences are cut", self._drain_timeout, router.sequences)
        if failed.done():
            raise failed.result()
        router.fail(EngineDiedError("the server is shutting down", 0, for_clients=SHUTTING_DOWN))


async def _start(
    service: Service, client: ProcessClient, settings: ServerSettings, timeline: Timeline, sockets: Sockets
) -> None:
    """Load the tokenizer here and the weights in the engine process, generate one token, set ready.

    Then starts the grammar process, a moment later: the first requests come before it. Ends then, or follows the list
    of adapters if there is one.
    """
    # Both fail on a missing path. `gather` raises the first error and retrieves the second.
    (text, longest, assets), info = await asyncio.gather(
        asyncio.to_thread(_load_text, settings), _start_engine(client, timeline)
    )
    check_vocabulary(text.tokenizer, info.vocab_size, settings.engine.model)
    if settings.relevance == "answer" and info.task != "generate":
        raise ModelError(
            f"{settings.engine.model} generates no text, which --relevance answer needs; use --relevance embedding"
        )
    timeline.mark("tokenizer")
    await warm_up(client.router, info)
    timeline.mark("first token")
    service.loaded = Loaded(text, info, longest)

    def read_text(folder: Path) -> ServedText | None:
        warn_of_other_base(folder, service.names)
        return served_text(folder, text, assets, settings.engine, info.vocab_size, info.added_ids)

    service.adapters.read_text = read_text
    following = await _start_adapters(service, settings, info)
    service.cold_start = timeline.now()
    # Objects loaded so far are permanent: the garbage collector need not traverse them again.
    gc.freeze()
    gc.enable()
    service.own_memory = resident_memory(os.getpid())
    service.ready = True
    os.nice(_NICENESS)
    _log_ready(service, settings, info, timeline, sockets)
    await asyncio.sleep(_GRAMMARS_SECONDS)
    service.grammar_checks.prepare()
    if following is not None:
        await following.follow()


async def _start_adapters(service: Service, settings: ServerSettings, info: EngineInfo) -> AdapterList | None:
    """Load the adapters of the settings: all are there, or have failed, before the server is ready."""
    adapters = service.adapters
    adapters.max_loaded = info.adapter_slots
    for given in settings.adapters:
        name, _, path = given.partition("=")
        adapters.offer(name, path, path)
    listed = None if settings.adapters_file is None else AdapterList(Path(settings.adapters_file), adapters)
    if listed is not None:
        await listed.first()
    await adapters.settled()
    return listed


async def _start_engine(client: ProcessClient, timeline: Timeline) -> EngineInfo:
    info = await client.start()
    timeline.mark("engine ready")
    for name, seconds in info.phases:
        timeline.note(name, seconds)
    return info


def _load_text(settings: ServerSettings) -> tuple[ServedModel, int, TokenizerAssets]:
    # jinja is imported while the engine loads, not before.
    from octavo_inference.tokenizer.chat_template import load_chat_template  # noqa: PLC0415

    model = settings.engine.model
    assets = load_assets(model)
    template = load_chat_template(assets, settings.engine.chat_template, model)
    if settings.relevance == "answer" and template is None:
        raise ModelError(f"{model} has no chat template, which --relevance answer needs; use --relevance embedding")
    source = find_model(model)
    pooling = settings.pooling or declared_pooling(source)
    text = ServedModel(
        assets.tokenizer,
        template,
        assets.tokenizer_class,
        assets.special_tokens,
        pooling,
        declares_normalized(source),
        settings.relevance,
        answer_formats(
            None if template is None else template.source,
            settings.engine.tool_call_parser,
            settings.engine.reasoning_parser,
        ),
    )
    return text, text.longest_token, assets


def _log_ready(
    service: Service, settings: ServerSettings, info: EngineInfo, timeline: Timeline, sockets: Sockets
) -> None:
    log.info("start-up: %s", timeline)
    log.info(
        "engine: %s, %d threads, context %d, KV %d blocks of %d tokens (%.0f MiB); profile %s: %d running, "
        "%d tokens a step, %s batching%s, %g times longer for a prompt; preemption by %s%s; prefixes kept as for %s",
        info.backend,
        info.threads,
        info.max_model_len,
        info.num_blocks,
        info.block_size,
        info.kv_bytes / 2**20,
        info.profile,
        info.max_running_requests,
        info.max_batched_tokens,
        info.batching,
        ", host and device at once" if info.overlap else "",
        info.prefill_slowdown,
        info.preemption,
        f" ({info.swap_bytes / 2**20:.0f} MiB)" if info.swap_bytes else "",
        info.cache_policy,
    )
    if info.rank_pids:
        others = ", ".join(f"{rank} (pid {pid})" for rank, pid in enumerate((info.pid, *info.rank_pids)))
        log.info("tensor parallelism: ranks %s; sizes are those of each", others)
    memory = {part: f"{size / 2**20:,.0f} MiB" for part, size in service.memory().items()}
    if memory:
        log.info(
            "memory of %s: weights %s, KV pool %s, activations %s, swap %s, processes %s; %s when all is in use; "
            "reserve %s",
            (info.memory and info.memory.device) or "the host",
            *(memory[part] for part in ("weights", "kv_pool", "activations", "swap", "processes", "in_all", "reserve")),
        )
    key = " -H 'Authorization: Bearer KEY'" if settings.api_key_file else ""
    log.info("%s is ready at %s/v1", service.names[0], sockets.url)
    log.info(
        "try: curl -N %s/v1/chat/completions -H 'Content-Type: application/json'%s -d "
        '\'{"model":"%s","stream":true,"messages":[{"role":"user","content":"Name the capital of France."}]}\'',
        sockets.url,
        key,
        service.names[0],
    )


class HttpServer(uvicorn.Server):
    """uvicorn on an existing socket, without its signal handlers. `head_seconds`: see `ClientConnection`."""

    def __init__(self, app: ASGIApp, listening: socket.socket, *, head_seconds: float = HEAD_SECONDS) -> None:
        self._socket = listening
        self._head_seconds = head_seconds
        self._stop = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=ClientConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )

    async def run(self) -> None:  # type: ignore[override]
        """Serve until `should_exit`."""
        await self.serve(sockets=[self._socket])

    @property
    def should_exit(self) -> bool:
        """True if the server should end; set it to end the server."""
        return self._stop.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._stop.set()

    async def main_loop(self) -> None:
        """Update the Date header and close overdue connections about once a second; uvicorn's loop runs more often."""
        loop = asyncio.get_running_loop()
        while not self.should_exit:
            await self.on_tick(0)
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection):
                    connection.sweep(now, self._head_seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), min(1.0, self._head_seconds / 4))

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers."""
        yield


def _default_name(model: str) -> str:
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition. Returns whether it became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(0.02)
    return True
