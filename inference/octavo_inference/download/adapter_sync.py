"""Keeps a folder of adapters as a list asks for, and tells the server which of them are there.

wanted list ──> download to .KEY ──> rename to KEY ──> list for the server
                no longer wanted ──> not in the list ──> removed a minute later, once no request reads it
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from octavo_inference.download.transfer import PrefetchError
from octavo_protocol.adapters import ListedAdapter, WantedAdapter, decode_list, decode_wanted, encode_list

LIST = "list.json"
# A server reads a changed list within a second. It may still be reading an adapter that was removed from it.
KEPT_SECONDS = 60.0
# A server becomes ready after its first list, which has all adapters unless some of them take longer than this.
FIRST_SECONDS = 120.0
# Downloads at the same time: a slow one holds up few others.
PARALLEL = 4
# Of an adapter, for its configuration and for what file systems need: the inspection counts all its other files.
OVERHEAD_BYTES = 1 << 20
_FIRST_RETRY, _LAST_RETRY = 10.0, 300.0
_REASON_LIMIT = 1000

Download = Callable[[str, Path], None]
"""Has the adapter of a source complete in a folder. Raises `PrefetchError` with a message for users."""


def key(source: str) -> str:
    """Name of the folder of a source: a name that had another source before must not share a folder with it."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Failed:
    """A download that failed, when it is tried again, and how often it was tried."""

    message: str
    again: float
    attempts: int


@dataclass(frozen=True, slots=True)
class _Running:
    """A download. `size`: bytes of the adapter when it is complete."""

    future: Future[None]
    size: int


@dataclass(slots=True)
class AdapterSync:
    """The adapters of one pod in `folder`. `wanted`: file of the wanted list; `executor` runs the downloads.

    `room`: bytes that the folder may grow by until the disk is full. `limit`: bytes that it may have, 0 for no limit.
    `started`: monotonic seconds of the start.
    """

    wanted: Path
    folder: Path
    download: Download
    executor: Executor
    say: Callable[[str], None]
    room: Callable[[], int]
    limit: int
    started: float
    _running: dict[str, _Running] = field(default_factory=dict)
    _failed: dict[str, _Failed] = field(default_factory=dict)
    _unwanted: dict[str, float] = field(default_factory=dict)
    _written: bytes = b""
    # By name, the adapter that the server reads.
    _served: dict[str, ListedAdapter] = field(default_factory=dict)
    _list: Sequence[WantedAdapter] = ()

    def step(self, now: float) -> None:
        """Take what is downloaded, write the list, remove what is not needed, start what is missing. Does not wait.

        `now`: monotonic seconds.
        """
        self._read()
        for source in [source for source, running in self._running.items() if running.future.done()]:
            self._take(source, self._running.pop(source).future, now)
        due = {each.source: each for each in self._list if self._is_due(each, now)}
        if self._written or not due or now - self.started >= FIRST_SECONDS:
            self._write()
        self._remove(now)
        self._start([each for source, each in due.items() if source not in self._running], now)

    def _part(self, source: str) -> Path:
        return self.folder / f".{key(source)}"

    def __post_init__(self) -> None:
        """Continue with the list of an earlier process of the container."""
        try:
            before = decode_list((self.folder / LIST).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return
        self._served = {each.name: each for each in before if each.path}

    def _read(self) -> None:
        try:
            self._list = decode_wanted(self.wanted.read_bytes())
        except FileNotFoundError:
            pass  # not written yet, or deleted by mistake: the operator writes it again
        except (OSError, msgspec.MsgspecError) as error:
            self.say(f"{self.wanted}: {error}; the adapters stay as they are")
        sources = {each.source for each in self._list}
        self._failed = {source: kept for source, kept in self._failed.items() if source in sources}

    def _is_due(self, adapter: WantedAdapter, now: float) -> bool:
        """True if it is neither complete, refused nor on another volume, and no failure keeps it back."""
        if adapter.failure or adapter.path or (self.folder / key(adapter.source)).exists():
            return False
        failed = self._failed.get(adapter.source)
        return failed is None or failed.again <= now

    def _start(self, idle: Sequence[WantedAdapter], now: float) -> None:
        """Start downloads that fit. One that does not waits while another one ends or is being removed, then fails."""
        for adapter in idle:
            if len(self._running) == PARALLEL:
                return
            source, size = adapter.source, adapter.file_bytes + OVERHEAD_BYTES
            needed, room = max(0, size - _bytes_of(self._part(source))), self._room()
            if needed <= room:
                self._running[source] = _Running(self.executor.submit(self.download, source, self._part(source)), size)
            elif not (self._running or self._unwanted):
                self._fail(
                    source,
                    f"it takes {size / 1e6:.0f} MB, and the pod has room for {max(0, room) / 1e6:.0f} MB of adapters: "
                    "remove other ones",
                    now,
                )

    def _room(self) -> int:
        """Bytes for more downloads, besides those that run."""
        missing = sum(max(0, running.size - _bytes_of(self._part(source))) for source, running in self._running.items())
        room = self.room()
        if self.limit:
            room = min(room, self.limit - _bytes_of(self.folder))
        return room - missing

    def _take(self, source: str, future: Future[None], now: float) -> None:
        try:
            future.result()
            self._part(source).rename(self.folder / key(source))
        except Exception as error:  # noqa: BLE001 - whatever it is, the pod serves the model and its other adapters
            self._fail(
                source, str(error) if isinstance(error, PrefetchError) else f"{type(error).__name__}: {error}", now
            )
        else:
            self._failed.pop(source, None)
            self.say(f"{source}: complete")

    def _fail(self, source: str, message: str, now: float) -> None:
        attempts = self._failed[source].attempts + 1 if source in self._failed else 1
        again = now + min(_FIRST_RETRY * 2 ** (attempts - 1), _LAST_RETRY)
        self._failed[source] = _Failed(message[:_REASON_LIMIT], again, attempts)
        self.say(f"{source}: {message}; next attempt in {again - now:.0f} s")

    def _write(self) -> None:
        """Write the server's list if it has changed, in one step."""
        listed = [found for each in self._list if (found := self._listed(each)) is not None]
        self._served = {each.name: each for each in listed if each.path}
        data = encode_list(listed)
        if data != self._written:
            new = self.folder / f".{LIST}"
            new.write_bytes(data)
            new.rename(self.folder / LIST)
            self._written = data

    def _listed(self, adapter: WantedAdapter) -> ListedAdapter | None:
        """The entry of an adapter, until it is downloaded that of the source its name had before. None without one."""
        folder = self.folder / key(adapter.source)
        if adapter.failure:
            return ListedAdapter(name=adapter.name, source=adapter.source, failure=adapter.failure)
        if adapter.path or folder.exists():
            return ListedAdapter(name=adapter.name, source=adapter.source, path=adapter.path or str(folder))
        before, failed = self._served.get(adapter.name), self._failed.get(adapter.source)
        if before is not None and (Path(before.path).parent != self.folder or Path(before.path).exists()):
            return before
        if failed is None:
            return None
        return ListedAdapter(name=adapter.name, source=adapter.source, failure=failed.message)

    def _remove(self, now: float) -> None:
        needed = {key(each.source) for each in self._list if not each.failure}
        needed |= {key(source) for source in (*self._running, *(each.source for each in self._served.values()))}
        there = [path for path in self.folder.iterdir() if path.is_dir() and path.name.lstrip(".") not in needed]
        self._unwanted = {path.name: self._unwanted.get(path.name, now) for path in there}
        for path in there:
            if now - self._unwanted[path.name] >= KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
                del self._unwanted[path.name]
                self.say(f"{path.name}: removed")


def _bytes_of(folder: Path) -> int:
    """Bytes of the files in a folder and in those within it. Files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
