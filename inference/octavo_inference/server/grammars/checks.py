"""Checks the grammars of requests: each is tried once in the grammar process, and the result is kept by tenant.

Tenants take turns, one grammar each. A grammar that costs too much ends the process, and only its own request. Another
process starts at once, which takes about a second: grammars only wait for it if they come that soon. After five minutes
without grammars, a fresh process takes the place of one that holds memory of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from octavo_inference.server.errors import RETRY_AFTER_SECONDS, ApiError, invalid
from octavo_inference.server.grammars.messages import ModelTokens, Tried
from octavo_inference.server.grammars.process import GrammarProcess, GrammarProcessEndedError
from octavo_inference.server.metrics import Histogram

log = logging.getLogger("octavo.server")

MAX_WAITING = 64
MAX_WAITING_OF_TENANT = 16
CACHE_BYTES = 1 << 20
IDLE_SECONDS = 300.0
PLANNED_BYTES = 166 * 2**20
"""For the memory plan: the process once it is in use, 86 MiB, and the same tokens in the engine, 80 MiB."""
# Key and bookkeeping of an entry.
_ENTRY_BYTES = 400
COMPILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REASONS = ("invalid", "time", "memory", "nesting", "busy", "failed", "queue_full")

_Key = tuple[str, bytes]


class Process(Protocol):
    """What `GrammarProcess` does."""

    @property
    def resident(self) -> int:
        """Resident bytes."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        ...

    async def trial(self, grammar: str) -> Tried:
        """Try a grammar."""
        ...

    async def end(self) -> None:
        """End the process."""
        ...


class GrammarMetrics:
    """Counters of checked grammars."""

    def __init__(self) -> None:
        self.compile_seconds = Histogram(COMPILE_BUCKETS)
        self.cache_hits = 0
        self.restarts = 0
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))


class GrammarChecks:
    """The checks of one server. `begin` gives the tokens of the loaded model; it runs in a thread."""

    def __init__(
        self,
        begin: Callable[[], ModelTokens],
        start: Callable[[ModelTokens], Awaitable[Process]] = GrammarProcess.start,
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.metrics = GrammarMetrics()
        self._begin = begin
        self._start = start
        self._idle_seconds = idle_seconds
        # Results, least recently used first: None, or why a grammar is refused.
        self._kept: OrderedDict[_Key, str | None] = OrderedDict()
        self._kept_bytes = 0
        # By tenant, in the order of their turns.
        self._waiting: OrderedDict[str, deque[tuple[_Key, str]]] = OrderedDict()
        self._open: dict[_Key, asyncio.Future[str | None]] = {}
        self._process: Process | None = None
        self._running: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Grammars that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def resident(self) -> int:
        """Resident bytes of the process; 0 while there is none."""
        return 0 if self._process is None else self._process.resident

    async def check(self, grammar: str, tenant: str, param: str) -> None:
        """Raise `ApiError` 400 for the field if a grammar cannot be used, and 503 if too many wait."""
        key = tenant, hashlib.sha256(grammar.encode()).digest()
        if key in self._kept:
            self.metrics.cache_hits += 1
            self._kept.move_to_end(key)
            problem = self._kept[key]
        else:
            problem = await asyncio.shield(self._queued(key, grammar))
        if problem is not None:
            raise invalid(f"{param}: {problem}.", param, "invalid_grammar")

    def prepare(self) -> None:
        """Start the process, so that the first grammar need not wait for it."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End the process. What waits is cancelled."""
        if self._idle is not None:
            self._idle.cancel()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        for future in self._open.values():
            future.cancel()
        await self._end()

    def _queued(self, key: _Key, grammar: str) -> asyncio.Future[str | None]:
        """The result of a grammar that is, or will be, tried."""
        if key in self._open:
            return self._open[key]
        tenant = key[0]
        queue = self._waiting.get(tenant, deque())
        if self.waiting >= MAX_WAITING or len(queue) >= MAX_WAITING_OF_TENANT:
            raise self._unavailable("queue_full", f"{self.waiting} grammars wait to be compiled already")
        self._waiting.setdefault(tenant, queue).append((key, grammar))
        future = self._open[key] = asyncio.get_running_loop().create_future()
        # A result that nobody awaits any more is no error.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return future

    async def _run(self, *, renew: bool = False) -> None:
        """Try all that waits, and have a process before and afterwards. With `renew`, it is another one."""
        tried = False
        try:
            if renew:
                await self._end()
            await self._prepare()
            while self._waiting:
                tried = True
                await self._try_next()
                await self._prepare()
        finally:
            self._running = None
        if tried:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._renew)

    async def _try_next(self) -> None:
        """Try one grammar, of the tenant whose turn it is."""
        tenant, queue = self._waiting.popitem(last=False)
        key, grammar = queue.popleft()
        if queue:
            self._waiting[tenant] = queue
        problem, error = None, None
        try:
            problem = await self._tried(key, grammar)
        except ApiError as found:
            error = found
        future = self._open.pop(key)
        if future.done():
            return  # closed meanwhile
        if error is None:
            future.set_result(problem)
        else:
            future.set_exception(error)

    async def _prepare(self) -> None:
        try:
            await self._started()
        except Exception:
            log.exception("the grammar process could not be started; the next grammar tries again")

    async def _started(self) -> Process:
        """The process, which is started if there is none."""
        if self._process is not None and not self._process.is_alive:
            await self._end()  # between two grammars, so none of them is to blame
        if self._process is None:
            self._process = await self._start(await asyncio.to_thread(self._begin))
        return self._process

    async def _tried(self, key: _Key, grammar: str) -> str | None:
        try:
            process = await self._started()
            tried = await process.trial(grammar)
        except (GrammarProcessEndedError, OSError) as error:
            await self._end()
            self.metrics.restarts += 1
            reason = error.reason if isinstance(error, GrammarProcessEndedError) else "failed"
            log.warning("a grammar ended its process (%s): %s", reason, error)
            if reason in {"failed", "busy"}:
                raise self._unavailable(reason, "this grammar could not be compiled now") from None
            self.metrics.refused[reason] += 1
            self._keep(key, str(error))
            return str(error)
        except ApiError:
            raise
        except Exception:
            log.exception("a grammar could not be tried")
            await self._end()
            raise self._unavailable("failed", "this grammar could not be compiled now") from None
        self.metrics.compile_seconds.observe(tried.seconds)
        if tried.error is not None:
            self.metrics.refused["invalid"] += 1
        self._keep(key, tried.error)
        return tried.error

    def _keep(self, key: _Key, problem: str | None) -> None:
        self._kept[key] = problem
        self._kept_bytes += _bytes(key, problem)
        while self._kept_bytes > CACHE_BYTES:
            self._kept_bytes -= _bytes(*self._kept.popitem(last=False))

    def _unavailable(self, reason: str, message: str) -> ApiError:
        self.metrics.refused[reason] += 1
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return ApiError(503, f"{message}; try again later.", code="grammars_busy", headers=headers)

    def _renew(self) -> None:
        self._running = asyncio.create_task(self._run(renew=True))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                await process.end()


def _bytes(key: _Key, problem: str | None) -> int:
    return _ENTRY_BYTES + len(key[0]) + len(problem or "")
