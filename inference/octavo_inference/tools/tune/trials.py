"""The load to tune for, and one trial of it on an engine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.engine.factory import load_engine
from octavo_inference.tools.tune.search import TrialSettings

# The final alternates between two engines. Both stay loaded.
_ENGINES = 2


class RequestShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of one request: prompt tokens and answer tokens."""

    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """Requests with these shapes, in rotation, `concurrency` of them at any time."""

    shapes: tuple[RequestShape, ...]
    concurrency: int

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return max(s.prompt_tokens + s.answer_tokens for s in self.shapes)


def read_shapes(path: Path) -> tuple[RequestShape, ...]:
    """Read shapes from JSON lines such as {"prompt_tokens": 300, "answer_tokens": 80}. Raises `SettingsError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        shapes = tuple(msgspec.json.decode(line, type=RequestShape) for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--load: {path} cannot be read: {error}", "--load") from None
    except msgspec.DecodeError as error:
        example = json.dumps({"prompt_tokens": 300, "answer_tokens": 80})
        raise SettingsError(f"--load: {path}: expected lines such as {example}: {error}", "--load") from None
    if not shapes or min(min(s.prompt_tokens, s.answer_tokens) for s in shapes) < 1:
        raise SettingsError(f"--load: {path} needs at least one request, each with 1 token or more", "--load")
    return shapes


def run(engine: Engine, load: TrialLoad, requests: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Serve `requests` requests, starting a new one whenever one ends. Returns generated tokens per second.

    The requests are the same in every trial, so the engine's prefix cache must not contain them.
    """
    rng = random.Random(0)  # noqa: S311 -- no secrets
    shapes = itertools.cycle(load.shapes)
    waiting = iter([_request(f"tune-{i}", next(shapes), engine.config.own_vocab, rng) for i in range(requests)])
    tokens = 0
    begin = clock()
    for request in itertools.islice(waiting, load.concurrency):
        engine.submit(request)
    while engine.has_work:
        outputs = engine.step()
        tokens += sum(len(output.tokens) for output in outputs)
        ended = sum(output.finish_reason is not None for output in outputs)
        for request in itertools.islice(waiting, ended):
            engine.submit(request)
    return tokens / (clock() - begin)


class Engines:
    """Engines by candidate. Candidates with the same threads and block size share the loaded weights."""

    def __init__(self, settings: EngineSettings, candidates: Iterable[TrialSettings]) -> None:
        everyone = list(candidates)
        self._settings = settings
        self._most_tokens = max(c.max_batched_tokens for c in everyone)
        self._most_rows = max(c.max_running_requests for c in everyone)
        self._loaded: OrderedDict[tuple[int, int], Engine] = OrderedDict()

    def get(self, candidate: TrialSettings) -> Engine:
        """A new engine with these settings and an empty pool."""
        key = (candidate.threads, candidate.block_size)
        if key not in self._loaded:
            while len(self._loaded) >= _ENGINES:
                self._loaded.popitem(last=False)
            largest = dataclasses.replace(
                self._settings,
                threads=candidate.threads,
                block_size=candidate.block_size,
                max_batched_tokens=self._most_tokens,
                max_running_requests=self._most_rows,
            )
            self._loaded[key] = load_engine(largest).engine
        self._loaded.move_to_end(key)
        engine = self._loaded[key]
        limits = dataclasses.replace(
            engine.limits,
            max_batched_tokens=candidate.max_batched_tokens,
            max_running=candidate.max_running_requests,
        )
        return Engine(engine.backend, engine.config, limits, clock=time.monotonic)


def _request(name: str, shape: RequestShape, vocab: int, rng: random.Random) -> Request:
    tokens = [rng.randrange(vocab) for _ in range(shape.prompt_tokens)]
    sampling = SamplingParams(temperature=0.0, max_tokens=shape.answer_tokens, ignore_eos=True)
    return Request(id=name, tokens=tokens, sampling=sampling)
