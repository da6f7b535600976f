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


@dataclass(slots=True)
class AdapterSync:
    """The adapters of one pod in `folder`. `wanted`: file of the wanted list; `executor` runs the downloads.

    `started`: monotonic seconds of the start.
    """

    wanted: Path
    folder: Path
    download: Download
    executor: Executor
    say: Callable[[str], None]
    started: float
    _running: dict[str, Future[None]] = field(default_factory=dict)
    _failed: dict[str, _Failed] = field(default_factory=dict)
    _unwanted: dict[str, float] = field(default_factory=dict)
    _written: bytes = b""
    # By name, the source that the server reads.
    _served: dict[str, str] = field(default_factory=dict)
    _list: Sequence[WantedAdapter] = ()

    def step(self, now: float) -> None:
        """Take what is downloaded, start what is not, write the list, remove what is not needed. Does not wait.

        `now`: monotonic seconds.
        """
        self._read()
        for source in [source for source, future in self._running.items() if future.done()]:
            self._take(source, self._running.pop(source), now)
        due = dict.fromkeys(each.source for each in self._list if self._is_due(each, now))
        idle = [source for source in due if source not in self._running]
        for source in idle[: PARALLEL - len(self._running)]:
            self._running[source] = self.executor.submit(self.download, source, self._part(source))
        if self._written or not due or now - self.started >= FIRST_SECONDS:
            self._write()
        self._remove(now)

    def _part(self, source: str) -> Path:
        return self.folder / f".{key(source)}"

    def __post_init__(self) -> None:
        """Continue with the list of an earlier process of the container."""
        try:
            before = decode_list((self.folder / LIST).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return
        self._served = {each.name: each.source for each in before if each.path}

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
        """True if it is neither complete nor refused, and no failure keeps it back."""
        if adapter.failure or (self.folder / key(adapter.source)).exists():
            return False
        failed = self._failed.get(adapter.source)
        return failed is None or failed.again <= now

    def _take(self, source: str, future: Future[None], now: float) -> None:
        try:
            future.result()
            self._part(source).rename(self.folder / key(source))
        except Exception as error:  # noqa: BLE001 - whatever it is, the pod serves the model and its other adapters
            attempts = self._failed[source].attempts + 1 if source in self._failed else 1
            message = str(error) if isinstance(error, PrefetchError) else f"{type(error).__name__}: {error}"
            again = now + min(_FIRST_RETRY * 2 ** (attempts - 1), _LAST_RETRY)
            self._failed[source] = _Failed(message[:_REASON_LIMIT], again, attempts)
            self.say(f"{source}: {message}; next attempt in {again - now:.0f} s")
        else:
            self._failed.pop(source, None)
            self.say(f"{source}: complete")

    def _write(self) -> None:
        """Write the server's list if it has changed, in one step."""
        listed = [found for each in self._list if (found := self._listed(each)) is not None]
        self._served = {each.name: each.source for each in listed if each.path}
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
        if folder.exists():
            return ListedAdapter(name=adapter.name, source=adapter.source, path=str(folder))
        before, failed = self._served.get(adapter.name), self._failed.get(adapter.source)
        if before is not None and (self.folder / key(before)).exists():
            return ListedAdapter(name=adapter.name, source=before, path=str(self.folder / key(before)))
        if failed is None:
            return None
        return ListedAdapter(name=adapter.name, source=adapter.source, failure=failed.message)

    def _remove(self, now: float) -> None:
        needed = {key(each.source) for each in self._list if not each.failure}
        needed |= {key(each) for each in (*self._running, *self._served.values())}
        there = [path for path in self.folder.iterdir() if path.is_dir() and path.name.lstrip(".") not in needed]
        self._unwanted = {path.name: self._unwanted.get(path.name, now) for path in there}
        for path in there:
            if now - self._unwanted[path.name] >= KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
                self.say(f"{path.name}: removed")
