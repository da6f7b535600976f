"""The adapters that an engine offers: read in a thread, kept in host memory, on the device while requests use them.

offer ──> reading ──> cached ──> loaded     A request waits until its adapter is loaded.
             └──> failed  └──> stored       Of the cached ones, the least recently used are dropped and read again.

A free slot gets the adapter of the waiting request that is next by the scheduler's rules, and with it all requests that
wait for it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from octavo_common.fair_queue import FairQueue, Place
from octavo_inference.common.errors import DeviceLostError, ModelError, UnreadableError
from octavo_inference.core.adapter_slots import AdapterSlots
from octavo_inference.core.backend import Backend, PreparedAdapter
from octavo_inference.models.adapter import Adapter
from octavo_protocol.adapters import AdapterState

log = logging.getLogger(__name__)

ReadAdapter = Callable[[Path], Adapter]
"""Reads a folder. Raises `ModelError` for an adapter that cannot be served."""


class EngineAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """State of an adapter in the engine. `key`: as it was offered."""

    key: str
    state: AdapterState
    rank: int = 0
    digest: str = ""
    failure: str = ""
    may_pass: bool = False
    """Reading it again may succeed, although nothing has changed."""
    running: int = 0
    """Requests that use it."""
    waiting: int = 0
    """Requests that wait for it."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A request may run: its adapter is in `slot`. `digest` sets its prefixes apart.

    `ids_end`: one more than the last id of which the adapter has a row, 0 if it has none.
    """

    request_id: str
    slot: int
    digest: str
    ids_end: int


@dataclass(frozen=True, slots=True)
class Denied:
    """A request whose adapter cannot be used."""

    request_id: str
    failure: str


@dataclass(frozen=True, slots=True)
class _Read:
    """What the thread found: an adapter in the form of the backend, or why there is none."""

    prepared: PreparedAdapter | None
    rank: int = 0
    digest: str = ""
    ids_end: int = 0
    nbytes: int = 0
    """Bytes of host memory of `prepared`, also after it was dropped."""
    failure: str = ""
    may_pass: bool = False


@dataclass(slots=True)
class _Offered:
    path: Path
    read: _Read | None = None
    reading: Future[object] | None = None
    withdrawn: bool = False
    waiting: dict[str, Place] = field(default_factory=dict)


class AdapterPool:
    """The adapters of one engine; `read` runs in a thread. `max_cached`: those kept in host memory, loaded ones too.

    `max_bytes`: of those in host memory, None for no limit. One that is being read or waits for its turn comes on top,
    and a single larger one is used alone. `order`: a queue for the requests whose adapters need a slot.

    Used from the engine's thread. `on_ready` is called in the other thread when `advance` has something to do.
    """

    def __init__(
        self,
        backend: Backend,
        read: ReadAdapter | None,
        max_cached: int,
        max_bytes: int | None,
        order: FairQueue[str],
    ) -> None:
        self.on_ready: Callable[[], object] = lambda: None
        self._backend = backend
        self._read_adapter = read
        self._max_cached = max(max_cached, backend.adapter_slots)
        self._max_bytes = max_bytes
        self._slots = AdapterSlots(backend.adapter_slots)
        self._offered: dict[str, _Offered] = {}
        self._executor = ThreadPoolExecutor(1, "octavo-adapters")
        self._done: deque[tuple[str, _Offered, _Read]] = deque()
        # Adapters with waiting requests, in the order of the first of each.
        self._queue: dict[str, None] = {}
        # By request that waits, its adapter.
        self._waits: dict[str, str] = {}
        # The waiting requests whose adapters have been read.
        self._order = order
        # The least recently used first.
        self._cached: OrderedDict[str, None] = OrderedDict()
        self._users: dict[str, str] = {}
        self._changed = False
        # Adapters with waiting requests that could be read before: why not now.
        self._unreadable: dict[str, str] = {}
        # The thread's error after which the process has to end.
        self._lost: DeviceLostError | None = None
        # A request waits, goes on or has ended since the last look at the queue.
        self._stirred = False

    @property
    def waiting(self) -> list[str]:
        """The ids of requests that wait for their adapter."""
        return list(self._waits)

    @property
    def is_ready(self) -> bool:
        """True if `advance` has something to do now."""
        return bool(self._done) or self._lost is not None or (self._stirred and bool(self._queue))

    def offer(self, key: str, path: str) -> None:
        """Read an adapter and keep it, on the device if there is a free slot."""
        if key not in self._offered:
            self._offered[key] = _Offered(Path(path))
            self._start(key)
            self._changed = True

    def withdraw(self, key: str) -> None:
        """Forget an adapter once no request uses it or waits for it. The sender lets no new ones begin."""
        if key in self._offered:
            self._offered[key].withdrawn = True
            self._drop_withdrawn(key)
            self._changed = True

    def begin(self, request_id: str, key: str, place: Place) -> Granted | Denied | None:
        """A new request for an adapter. None: it waits at `place`, and `advance` returns it later."""
        offered = self._offered.get(key)
        if offered is None:
            return Denied(request_id, "it is not there any more")
        if offered.read is not None and offered.read.failure:
            return Denied(request_id, offered.read.failure)
        slot = self._slots.acquire(key)
        if slot is None or offered.read is None:
            offered.waiting[request_id] = place
            self._waits[request_id] = key
            self._queue.setdefault(key)
            if offered.read is not None and offered.read.prepared is not None:
                self._order.push(request_id, place)
            self._changed = self._stirred = True
            return None
        return self._grant(request_id, key, slot, offered.read)

    def finished(self, request_id: str) -> None:
        """A request has ended, running or waiting."""
        key = self._users.pop(request_id, None)
        if key is not None:
            self._changed = self._stirred = True
            self._slots.release(key)
            self._drop_withdrawn(key)
            return
        key = self._waits.get(request_id)
        if key is not None:
            self._changed = self._stirred = True
            self._leave(request_id, key)
            self._drop_withdrawn(key)

    def advance(self, now: float) -> Iterator[Granted | Denied]:
        """Take what was read, load what requests wait for, and let these requests go on. `now`: the queue's clock.

        The caller deals with each before the next. Raises `DeviceLostError` if preparing an adapter has raised it.
        """
        if self._lost is not None:
            raise self._lost
        self._take()
        if not self._stirred:
            return
        self._stirred = False
        for key in list(self._queue):
            read = self._offered[key].read
            failure = self._unreadable.pop(key, "" if read is None else read.failure)
            if failure:
                yield from self._deny(key, failure)
            elif read is None or read.prepared is None:
                self._start(key)
        while (head := self._order.head(now)) is not None:
            key = self._waits[head]
            read = self._offered[key].read
            assert read is not None  # noqa: S101 -- only such requests are in the order
            if not self._load(key, read):
                self._slots.make_room()
                return
            for request_id in list(self._offered[key].waiting):
                slot = self._slots.acquire(key)
                assert slot is not None  # noqa: S101 -- it was just loaded
                yield self._grant(request_id, key, slot, read)
                # Not before: a tenant whose request goes from queue to queue was not idle between.
                self._leave(request_id, key)

    def changes(self) -> list[EngineAdapter] | None:
        """The state of all adapters if any has changed since the last call, else None."""
        if not self._changed:
            return None
        self._changed = False
        return [self._state(key, offered) for key, offered in self._offered.items()]

    def wait(self) -> bool:
        """Wait until an adapter that is being read is there, for programs without other work. False without one."""
        futures = (offered.reading for offered in self._offered.values() if offered.reading is not None)
        first = next(futures, None)
        if first is not None:
            first.result()
        return first is not None

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _grant(self, request_id: str, key: str, slot: int, read: _Read) -> Granted:
        self._users[request_id] = key
        self._changed = True
        self._cached.move_to_end(key)
        return Granted(request_id, slot, read.digest, read.ids_end)

    def _deny(self, key: str, failure: str) -> Iterator[Denied]:
        waiting = list(self._offered[key].waiting)
        for request_id in waiting:
            self._leave(request_id, key)
        self._drop_withdrawn(key)
        yield from (Denied(request_id, failure) for request_id in waiting)

    def _leave(self, request_id: str, key: str) -> None:
        """A request waits no more."""
        waiting = self._offered[key].waiting
        del waiting[request_id], self._waits[request_id]
        if request_id in self._order:
            self._order.remove(request_id)
        if not waiting:
            del self._queue[key]
            self._unreadable.pop(key, None)
            self._stirred = True

    def _take(self) -> None:
        """Take what the thread has read."""
        while self._done:
            key, offered, read = self._done.popleft()
            offered.reading = None
            if self._offered.get(key) is not offered:
                continue  # withdrawn since
            self._changed = self._stirred = True
            before, offered.read = offered.read, read
            if before is not None and read.failure:
                # It was readable before: whatever is wrong with its files or with memory now may pass.
                offered.read = before
                if offered.waiting:
                    self._unreadable[key] = read.failure
            if read.prepared is not None:
                self._keep(key, offered, read)
            self._drop_withdrawn(key)

    def _keep(self, key: str, offered: _Offered, read: _Read) -> None:
        """Keep an adapter that was read, unless those before it need the memory: it is read again when it is next."""
        self._cached[key] = None
        # One that does not fit beside those in slots takes the place of none before its turn.
        if self._slots.has_free and (not self._slots.keys or self._fits(self._slots.keys, read.nbytes)):
            self._load(key, read)
        self._drop_cached()
        is_next = key == next(iter(self._queue), key)
        if key in self._cached and key not in self._slots.keys and not is_next and not self._fits(self._cached):
            self._drop(key)
        if key in self._cached:
            for request_id, place in offered.waiting.items():
                self._order.push(request_id, place)

    def _load(self, key: str, read: _Read) -> bool:
        """Load an adapter into a slot. Returns False if all slots are in use, or the memory of those in use."""
        if key not in self._slots.keys:
            while self._slots.keys and not self._fits(self._slots.keys, read.nbytes):
                emptied = self._slots.evict()
                if emptied is None:
                    return False
                self._backend.load_adapter(emptied, None)
                self._changed = True
        placed = self._slots.place(key)
        if placed is None:
            return False
        slot, absent = placed
        if absent:
            self._backend.load_adapter(slot, read.prepared)
            self._changed = True
            self._drop_cached()
        return True

    def _drop_cached(self) -> None:
        """Forget the adapters that were not used for longest, down to the limit. They are read again when needed."""
        loaded = set(self._slots.keys)
        for key in [key for key in self._cached if key not in loaded and key not in self._queue]:
            if len(self._cached) <= self._max_cached and self._fits(self._cached):
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        del self._cached[key]
        read = self._offered[key].read
        if read is not None:
            self._offered[key].read = replace(read, prepared=None)
        self._changed = True

    def _fits(self, keys: Iterable[str], more: int = 0) -> bool:
        """Whether these adapters, and `more` bytes, fit into host memory."""
        sizes = (read.nbytes for key in keys if (read := self._offered[key].read) is not None)
        return self._max_bytes is None or sum(sizes) + more <= self._max_bytes

    def _drop_withdrawn(self, key: str) -> None:
        """Forget an adapter that was withdrawn, once no request uses it."""
        offered = self._offered[key]
        if not offered.withdrawn or offered.waiting or self._slots.users(key):
            return
        slot = self._slots.remove(key)
        if slot is not None:
            self._backend.load_adapter(slot, None)
        self._cached.pop(key, None)
        del self._offered[key]
        self._changed = True

    def _start(self, key: str) -> None:
        offered = self._offered[key]
        # Those that requests wait for, and that are there or will be.
        ahead = {other for other in self._queue if other in self._cached or self._offered[other].reading is not None}
        is_next = key == next(iter(self._queue), key)
        if offered.read is not None and not is_next and not self._fits(ahead.union(self._slots.keys) | {key}):
            return  # it is read when it is next, or when there is room
        if offered.reading is None:
            offered.reading = self._executor.submit(self._run, key, offered)

    def _run(self, key: str, offered: _Offered) -> object:
        """In the thread: read an adapter, and bring it into the backend's form."""
        if self._read_adapter is None:
            self._done.append((key, offered, _Read(None, failure="this model takes no adapters")))
            return self.on_ready()
        try:
            adapter = self._read_adapter(offered.path)
            prepared = self._backend.prepare_adapter(adapter)
            found = _Read(prepared, adapter.rank, adapter.digest, adapter.ids_end, prepared.nbytes)
        except DeviceLostError as error:
            self._lost = error
            return self.on_ready()
        except ModelError as error:
            found = _Read(None, failure=str(error), may_pass=isinstance(error, UnreadableError))
        except OSError as error:
            found = _Read(None, failure=f"it cannot be read: {error.strerror or error}", may_pass=True)
        except Exception as error:
            log.exception("an adapter could not be read")
            found = _Read(None, failure=f"it could not be read: {type(error).__name__}")
        self._done.append((key, offered, found))
        return self.on_ready()

    def _state(self, key: str, offered: _Offered) -> EngineAdapter:
        read = offered.read
        state: AdapterState = "loading"
        if read is not None:
            loaded = key in self._slots.keys
            state = (
                "failed" if read.failure else "loaded" if loaded else "stored" if read.prepared is None else "cached"
            )
        return EngineAdapter(
            key=key,
            state=state,
            rank=0 if read is None else read.rank,
            digest="" if read is None else read.digest,
            failure="" if read is None else read.failure,
            may_pass=read is not None and read.may_pass,
            running=self._slots.users(key),
            waiting=len(offered.waiting),
        )
