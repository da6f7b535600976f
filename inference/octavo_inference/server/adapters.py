"""The adapters of a server, by name: each is a model of its own, offered by the list file or by an admin request.

The engine knows an adapter by a key that is never used again. So an adapter that takes the place of another with the
same name has its own prefixes, and answers that have begun keep the old one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from octavo_inference.common.errors import ModelError, UnreadableError
from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.core.request import OfferAdapter, WithdrawAdapter
from octavo_inference.engine.output_router import OutputRouter
from octavo_protocol.adapters import AdapterReport, AdapterState, ListedAdapter, is_adapter_name

# From the check of a request's model until the engine has the request.
_GRACE_SECONDS = 10.0
# Until files that could not be read are tried again; each time twice as long.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 15.0, 600.0
log = logging.getLogger("octavo.server")


Text = TypeVar("Text")


@dataclass(slots=True)
class ServedAdapter(Generic[Text]):
    """An adapter that is offered. `listed`: by the list file, which also withdraws it. `state`: as the engine says.

    `text`: how its prompts and answers are written, None as the model's. `reading`: until that is known. `attempts`:
    how often it was offered; `again`: when it is the next time.
    """

    name: str
    key: str
    path: str
    source: str
    listed: bool
    state: EngineAdapter
    text: Text | None = None
    reading: asyncio.Task[None] | None = None
    text_failure: str = ""
    text_may_pass: bool = False
    attempts: int = 1
    again: asyncio.TimerHandle | None = None

    @property
    def may_pass(self) -> bool:
        """It failed, and may be readable later although nothing has changed."""
        return self.text_may_pass if self.text_failure else bool(self.state.failure) and self.state.may_pass

    @property
    def failure(self) -> str:
        """Why it cannot be used; empty if it can, or is being read."""
        return self.text_failure or self.state.failure

    @property
    def is_loading(self) -> bool:
        """True until all of its files are read, or one of them has failed."""
        return not self.failure and (self.state.state == "loading" or self.reading is not None)

    @property
    def report(self) -> AdapterReport:
        """What load reports say of it."""
        state = self.state
        shown: AdapterState = "failed" if self.failure else "loading" if self.is_loading else state.state
        return AdapterReport(name=self.name, state=shown, source=self.source, rank=state.rank, failure=self.failure)


class Adapters(Generic[Text]):
    """The adapters of one server. Used in its event loop. `names`: those of the model, which no adapter may have."""

    def __init__(self, router: OutputRouter, names: Iterable[str]) -> None:
        self.max_loaded = 0
        self.read_text: Callable[[Path], Text | None] = lambda _: None
        """In a thread: how the prompts of the adapter in a folder are written. Raises `ModelError`."""
        self._router = router
        self._names = frozenset(names)
        self._by_name: dict[str, ServedAdapter[Text]] = {}
        self._by_key: dict[str, ServedAdapter[Text]] = {}
        self._numbers = itertools.count(1)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changed = asyncio.Event()
        # A tokenizer takes many times the memory of its file while it is read.
        self._one_reads = asyncio.Lock()
        router.on_adapters = self.update

    def find(self, name: str) -> ServedAdapter[Text] | None:
        """The adapter of this name."""
        return self._by_name.get(name)

    @property
    def all(self) -> list[ServedAdapter[Text]]:
        """All adapters, in the order in which they were offered."""
        return list(self._by_name.values())

    @property
    def count(self) -> int:
        """The number of names, with those that are being loaded by request."""
        return len(self._by_name.keys() | {adapter.name for adapter in self._by_key.values()})

    def turn(self, name: str) -> asyncio.Lock:
        """Hold it while a name is loaded or unloaded by request: those of one name take turns, in their order."""
        return self._turns.setdefault(name, asyncio.Lock())

    def reports(self) -> list[AdapterReport]:
        """What load reports say of all of them."""
        return [adapter.report for adapter in self._by_name.values()]

    def refusal(self, name: str) -> str:
        """Why no adapter can have this name; empty if one can."""
        if self.max_loaded == 0:
            return "this server takes no adapters; start it with --max-loaded-adapters above 0"
        if not is_adapter_name(name):
            return f"{name!r} is no name of an adapter: between two slashes, begin with a letter or a digit"
        return f"{name!r} is a name of the model itself; choose another one" if name in self._names else ""

    def offer(self, name: str, path: str, source: str = "", *, listed: bool = False, failure: str = "") -> None:
        """Offer an adapter. It takes the place of one with the same name. With a `failure` there is nothing to read."""
        self.withdraw(name)
        failure = failure or self.refusal(name)
        if not failure:
            self._by_name[name] = self._new(name, path, source, listed=listed)
            return
        log.warning("adapter %s cannot be used: %s", name, failure)
        state = EngineAdapter(key="", state="failed", failure=failure)
        self._by_name[name] = ServedAdapter(name, "", path, source, listed, state)

    def withdraw(self, name: str) -> bool:
        """Take no more requests for an adapter. Returns whether there was one of this name."""
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            return False
        if adapter.again is not None:
            adapter.again.cancel()
        self._drop(adapter)
        self._changed.set()
        return True

    def follow(self, wanted: list[ListedAdapter]) -> None:
        """Offer what a list has, and withdraw what an earlier one had. What has not changed goes on."""
        names = {adapter.name for adapter in wanted}
        for adapter in self.all:
            if adapter.listed and adapter.name not in names:
                log.info("adapter %s is withdrawn", adapter.name)
                self.withdraw(adapter.name)
        for listed in wanted:
            known = self._by_name.get(listed.name)
            same = known is not None and (known.path, known.source) == (listed.path, listed.source)
            if known is None or not same or known.failure != (listed.failure or known.failure):
                self.offer(listed.name, listed.path, listed.source, listed=True, failure=listed.failure)

    def offer_again(self) -> None:
        """Offer all adapters to an engine that was loaded again."""
        for adapter in self._by_key.values():
            adapter.state = EngineAdapter(key=adapter.key, state="loading")
            self._router.send(OfferAdapter(key=adapter.key, path=adapter.path))

    def update(self, states: list[EngineAdapter]) -> None:
        """Note the states that the engine reports."""
        for state in states:
            adapter = self._by_key.get(state.key)
            if adapter is None:
                continue
            if state.state != adapter.state.state and state.state in {"loaded", "failed"}:
                rank = f", rank {state.rank}" if state.rank else ""
                log.info(
                    "adapter %s is %s%s", adapter.name, state.state, f": {state.failure}" if state.failure else rank
                )
            adapter.state = state
            self._retry_later(adapter)
        self._changed.set()

    def _retry_later(self, adapter: ServedAdapter[Text]) -> None:
        """Offer an adapter again after a while, if it is offered but its files could not be read."""
        if not adapter.may_pass or adapter.again is not None or self._by_name.get(adapter.name) is not adapter:
            return
        delay = min(_RETRY_SECONDS * 2 ** (adapter.attempts - 1), _LONGEST_RETRY_SECONDS)
        log.warning("adapter %s is read again in %d s", adapter.name, delay)
        adapter.again = asyncio.get_running_loop().call_later(delay, self._retry, adapter)

    def _retry(self, adapter: ServedAdapter[Text]) -> None:
        self.withdraw(adapter.name)
        fresh = self._new(adapter.name, adapter.path, adapter.source, listed=adapter.listed)
        fresh.attempts = adapter.attempts + 1
        self._by_name[adapter.name] = fresh

    async def load(self, name: str, path: str) -> str:
        """Read an adapter and put it in the place of one with the same name. Returns why it cannot be used, or "".

        Within a `turn` of the name.
        """
        candidate = self._new(name, path, path, listed=False)
        try:
            await self._read([candidate])
        except asyncio.CancelledError:
            self._drop(candidate)
            raise
        if candidate.failure:
            self._drop(candidate)
            return candidate.failure
        known = self._by_name.get(name)
        if known is not None and known.listed:
            self._drop(candidate)
            return f"--adapters-file has got an adapter {name!r} meanwhile, which alone says whether it is there"
        self.withdraw(name)
        self._by_name[name] = candidate
        return ""

    async def settled(self) -> None:
        """Wait until each adapter is read or has failed."""
        await self._read(self.all)

    async def _read(self, adapters: list[ServedAdapter[Text]]) -> None:
        while any(each.is_loading and each.key in self._by_key for each in adapters):
            self._changed.clear()
            await self._changed.wait()

    def _new(self, name: str, path: str, source: str, *, listed: bool) -> ServedAdapter[Text]:
        """Let the engine read an adapter."""
        key = f"{name}#{next(self._numbers)}"
        adapter: ServedAdapter[Text] = ServedAdapter(
            name, key, path, source, listed, EngineAdapter(key=key, state="loading")
        )
        self._by_key[key] = adapter
        self._router.send(OfferAdapter(key=key, path=path))
        adapter.reading = asyncio.get_running_loop().create_task(self._read_text(adapter))
        return adapter

    async def _read_text(self, adapter: ServedAdapter[Text]) -> None:
        try:
            async with self._one_reads:
                adapter.text = await asyncio.to_thread(self.read_text, Path(adapter.path))
        except ModelError as error:
            adapter.text_failure, adapter.text_may_pass = str(error), isinstance(error, UnreadableError)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            log.exception("the tokenizer of an adapter could not be read")
            adapter.text_failure = f"its tokenizer could not be read: {type(error).__name__}"
        finally:
            if adapter.text_failure:
                log.warning("adapter %s cannot be used: %s", adapter.name, adapter.text_failure)
                self._drop(adapter)
                self._retry_later(adapter)
            adapter.reading = None
            self._changed.set()

    def _drop(self, adapter: ServedAdapter[Text]) -> None:
        """Let the engine forget an adapter, when requests that have it already but are still tokenized are there."""
        if self._by_key.pop(adapter.key, None) is not None:
            message = WithdrawAdapter(key=adapter.key)
            asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._router.send, message)
