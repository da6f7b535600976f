"""The load to tune for, and one trial of it on an engine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.engine.factory import LoadedEngine, load_engine
from octavo_inference.tools.tune.search import TrialSettings
from octavo_protocol.engine_settings import SpeculationName

# The final alternates between two engines. Both stay loaded.
_ENGINES = 2


class RequestShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request: its prompt as a text or a number of random tokens, and how many tokens the answer has at most.

    With random tokens, the answer has as many.
    """

    prompt: str = ""
    prompt_tokens: int = 0
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """Requests with these shapes, in rotation, `concurrency` of them at any time."""

    shapes: tuple[RequestShape, ...]
    concurrency: int

    @property
    def has_texts(self) -> bool:
        """Its prompts are texts, so that answers are what the model says to them: guesses can be right."""
        return any(shape.prompt for shape in self.shapes)

    def tokens(self, shape: RequestShape, tokenizer: Tokenizer) -> int:
        """Tokens of a request, prompt and answer together."""
        prompt = len(tokenizer.encode(shape.prompt).ids) if shape.prompt else shape.prompt_tokens
        return prompt + shape.answer_tokens

    def longest(self, tokenizer: Tokenizer) -> int:
        """Tokens of the longest request."""
        return max(self.tokens(shape, tokenizer) for shape in self.shapes)

    def requests(self, count: int, tokenizer: Tokenizer, vocab: int) -> list[Request]:
        """The first requests, the same ones each time."""
        rng = random.Random(0)  # noqa: S311 -- no secrets
        shapes = itertools.islice(itertools.cycle(self.shapes), count)
        return [_request(f"tune-{i}", shape, tokenizer, vocab, rng) for i, shape in enumerate(shapes)]


def read_shapes(path: Path) -> tuple[RequestShape, ...]:
    """Read shapes from JSON lines such as {"prompt_tokens": 300, "answer_tokens": 80}, or with a text as "prompt".

    Raises `SettingsError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        shapes = tuple(msgspec.json.decode(line, type=RequestShape) for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--load: {path} cannot be read: {error}", "--load") from None
    except msgspec.DecodeError as error:
        example = json.dumps({"prompt_tokens": 300, "answer_tokens": 80})
        raise SettingsError(f"--load: {path}: expected lines such as {example}: {error}", "--load") from None
    if not shapes or min(min(s.prompt_tokens or len(s.prompt), s.answer_tokens) for s in shapes) < 1:
        raise SettingsError(f"--load: {path} needs at least one request, each with 1 token or more", "--load")
    if any(s.prompt and s.prompt_tokens for s in shapes):
        raise SettingsError(f"--load: {path}: a line has prompt and prompt_tokens; give one of them", "--load")
    return shapes


def run(
    engine: Engine, requests: Sequence[Request], concurrency: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Serve requests, starting a new one whenever one ends. Returns generated tokens per second.

    The requests are the same in every trial, so the engine's prefix cache must not contain them.
    """
    waiting = iter(requests)
    tokens = 0
    begin = clock()
    for request in itertools.islice(waiting, concurrency):
        engine.submit(request)
    while engine.has_work:
        outputs = engine.step()
        tokens += sum(len(output.tokens) for output in outputs)
        ended = sum(output.finish_reason is not None for output in outputs)
        for request in itertools.islice(waiting, ended):
            engine.submit(request)
    return tokens / (clock() - begin)


class Engines:
    """Engines by candidate. Candidates with the same threads, block size and speculation share the loaded weights."""

    def __init__(self, settings: EngineSettings, candidates: Iterable[TrialSettings]) -> None:
        everyone = list(candidates)
        self._settings = settings
        self._most_tokens = max(c.max_batched_tokens for c in everyone)
        self._most_rows = max(c.max_running_requests for c in everyone)
        self._loaded: OrderedDict[tuple[int, int, SpeculationName], LoadedEngine] = OrderedDict()

    def get(self, candidate: TrialSettings) -> Engine:
        """A new engine with these settings and an empty pool."""
        key = (candidate.threads, candidate.block_size, candidate.speculation)
        if key not in self._loaded:
            while len(self._loaded) >= _ENGINES:
                self._loaded.popitem(last=False)
            largest = dataclasses.replace(
                self._settings,
                threads=candidate.threads,
                block_size=candidate.block_size,
                speculation=candidate.speculation,
                max_batched_tokens=self._most_tokens,
                max_running_requests=self._most_rows,
            )
            self._loaded[key] = load_engine(largest)
        self._loaded.move_to_end(key)
        loaded = self._loaded[key]
        return loaded.again(
            dataclasses.replace(
                loaded.engine.limits,
                max_batched_tokens=candidate.max_batched_tokens,
                max_running=candidate.max_running_requests,
            )
        )


def _request(name: str, shape: RequestShape, tokenizer: Tokenizer, vocab: int, rng: random.Random) -> Request:
    tokens = [rng.randrange(vocab) for _ in range(shape.prompt_tokens)]
    if shape.prompt:
        tokens = tokenizer.encode(shape.prompt).ids
    # Behind the end of an answer a model repeats itself, which is easier to guess than its answers.
    sampling = SamplingParams(temperature=0.0, max_tokens=shape.answer_tokens, ignore_eos=not shape.prompt)
    return Request(id=name, tokens=tokens, sampling=sampling)
