"""Keeps a folder of adapters as a list asks for, and tells the server which of them are there.

wanted list ──> download to .KEY ──> rename to KEY ──> list for the server
                no longer wanted ──> not in the list ──> removed a minute later, once no request reads it
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from octavo_inference.download.transfer import PrefetchError
from octavo_protocol.adapters import ListedAdapter, WantedAdapter, decode_wanted, encode_list

LIST = "list.json"
# A server that reads the list every few seconds has taken an adapter out of use by then.
KEPT_SECONDS = 60.0
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
    """The adapters of one pod in `folder`. `wanted`: file of the wanted list."""

    wanted: Path
    folder: Path
    download: Download
    say: Callable[[str], None]
    _failed: dict[str, _Failed] = field(default_factory=dict)
    _unwanted: dict[str, float] = field(default_factory=dict)
    _written: bytes = b""
    _list: Sequence[WantedAdapter] = ()

    def step(self, now: float) -> bool:
        """Download at most one adapter, write the list, remove what is not needed. True if more is to be done now.

        `now`: monotonic seconds.
        """
        self._read()
        due = next((each.source for each in self._list if self._is_due(each, now)), None)
        if due is not None:
            self._fetch(due, now)
        self._write()
        self._remove(now)
        return due is not None

    def _read(self) -> None:
        try:
            self._list = decode_wanted(self.wanted.read_bytes())
        except FileNotFoundError:
            self._list = ()
        except (OSError, msgspec.MsgspecError) as error:
            self.say(f"{self.wanted}: {error}; the adapters stay as they are")
        sources = {each.source for each in self._list}
        self._failed = {source: kept for source, kept in self._failed.items() if source in sources}

    def _is_due(self, adapter: WantedAdapter, now: float) -> bool:
        if adapter.failure or (self.folder / key(adapter.source)).exists():
            return False
        failed = self._failed.get(adapter.source)
        return failed is None or failed.again <= now

    def _fetch(self, source: str, now: float) -> None:
        part = self.folder / f".{key(source)}"
        try:
            self.download(source, part)
            part.rename(self.folder / key(source))
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
        data = encode_list(listed)
        if data != self._written:
            new = self.folder / f".{LIST}"
            new.write_bytes(data)
            new.rename(self.folder / LIST)
            self._written = data

    def _listed(self, adapter: WantedAdapter) -> ListedAdapter | None:
        """The entry of an adapter; None while it is being downloaded."""
        folder = self.folder / key(adapter.source)
        if adapter.failure:
            return ListedAdapter(name=adapter.name, source=adapter.source, failure=adapter.failure)
        if folder.exists():
            return ListedAdapter(name=adapter.name, source=adapter.source, path=str(folder))
        failed = self._failed.get(adapter.source)
        if failed is None:
            return None
        return ListedAdapter(name=adapter.name, source=adapter.source, failure=failed.message)

    def _remove(self, now: float) -> None:
        needed = {key(each.source) for each in self._list if not each.failure}
        there = [path for path in self.folder.iterdir() if path.is_dir() and path.name.lstrip(".") not in needed]
        self._unwanted = {path.name: self._unwanted.get(path.name, now) for path in there}
        for path in there:
            if now - self._unwanted[path.name] >= KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
                self.say(f"{path.name}: removed")
