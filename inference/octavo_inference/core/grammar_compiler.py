"""Compiles grammars in a thread of its own, and keeps the newest ones."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Compile, GrammarState

log = logging.getLogger(__name__)

# Compiled grammars to keep, and the characters of their texts. A compiled grammar takes up to 50 bytes for each.
_GRAMMARS = 128
_TEXT = 1 << 19

Compiled = GrammarState | RequestError


class GrammarCompiler:
    """Matchers of grammars, at their start. Used from one thread; `load` and what it returns run in another.

    `load` prepares the model's tokens once, for `prepare` or for the first grammar. `on_ready` is called in the other
    thread each time that `take` has something to return.
    """

    def __init__(self, load: Callable[[], Compile], clock: Callable[[], float]) -> None:
        self.on_ready: Callable[[], object] = lambda: None
        self.has_begun = False
        """True once the other thread has been given work."""
        self.compiled = 0
        self.seconds = 0.0
        self._load = load
        self._clock = clock
        self._compile: Compile | None = None
        self._executor = ThreadPoolExecutor(1, "octavo-grammars")
        self._jobs: dict[str, Future[None]] = {}
        self._done: deque[tuple[str, Compiled]] = deque()
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, GrammarState] = OrderedDict()
        self._held = 0

    @property
    def running(self) -> bool:
        """True until `take` has returned the results of all `start` calls."""
        return bool(self._jobs)

    @property
    def names(self) -> Iterable[str]:
        """The names of the calls of `start` whose results `take` has not returned."""
        return self._jobs

    @property
    def ready(self) -> bool:
        """True if `take` has something to return."""
        return bool(self._done)

    def prepare(self) -> None:
        """Load the model's tokens in the other thread, before a grammar needs them."""
        self.has_begun = True
        self._executor.submit(self._prepare)

    def cached(self, grammar: str) -> GrammarState | None:
        """The matcher of a grammar that is compiled already. To be copied, not advanced."""
        with self._lock:
            if grammar not in self._cache:
                return None
            self._cache.move_to_end(grammar)
            return self._cache[grammar]

    def start(self, name: str, grammar: str) -> None:
        """Compile a grammar; `name` is unique among those that `take` has not returned."""
        self.has_begun = True
        self._jobs[name] = self._executor.submit(self._run, name, grammar)

    def take(self) -> list[tuple[str, Compiled]]:
        """The names and results of compiles that have finished since the last call. Matchers are to be copied."""
        found = []
        while self._done:
            name, result = self._done.popleft()
            self._jobs.pop(name, None)  # its id may have been used again
            found.append((name, result))
        return found

    def wait(self) -> None:
        """Wait until `take` has something to return. Returns at once if nothing runs."""
        if self._jobs and not self._done:
            next(iter(self._jobs.values())).result()

    def _run(self, name: str, grammar: str) -> None:
        result: Compiled
        try:
            result = self.cached(grammar) or self._add(grammar)
        except RequestError as error:
            result = error
        except BaseException:  # a panic of llguidance's Rust code is no Exception
            log.exception("a grammar could not be compiled")
            result = RequestError("the grammar could not be compiled", "grammar")
        self._done.append((name, result))
        self.on_ready()

    def _prepare(self) -> None:
        try:
            self._loaded()
        except Exception as error:  # noqa: BLE001 -- llguidance does not know every tokenizer, and few requests need it
            log.warning("the model's tokens cannot be prepared for grammars (%s); the first grammar tries again", error)

    def _loaded(self) -> Compile:
        if self._compile is None:
            began = self._clock()
            self._compile = self._load()
            log.info("the model's tokens are ready for grammars after %.2f s", self._clock() - began)
        return self._compile

    def _add(self, grammar: str) -> GrammarState:
        compile_grammar = self._loaded()
        began = self._clock()
        try:
            matcher = compile_grammar(grammar)
        finally:
            self.compiled += 1
            self.seconds += self._clock() - began
        with self._lock:
            self._cache[grammar] = matcher
            self._held += len(grammar)
            while len(self._cache) > 1 and (len(self._cache) > _GRAMMARS or self._held > _TEXT):
                self._held -= len(self._cache.popitem(last=False)[0])
        return matcher
