"""Runs loads through an engine of this process and measures their rates. Times are those of the step loop."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from octavo_inference.common.errors import OctavoError
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request, SamplingParams

Kind = Literal["prompt", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to requests submitted together: their tokens, and the arrival time of each token.

    Times are in seconds since the submission.
    """

    tokens: list[list[int]]
    times: list[list[float]]

    @property
    def seconds(self) -> float:
        """Seconds from the submission to the last token."""
        return max(times[-1] for times in self.times)

    @property
    def first(self) -> list[float]:
        """Time to first token of each request."""
        return [times[0] for times in self.times]

    @property
    def between(self) -> list[float]:
        """Mean inter-token time of each request with several tokens. A step may give one request several tokens."""
        return [(times[-1] - times[0]) / (len(times) - 1) for times in self.times if len(times) > 1]

    @property
    def gaps(self) -> list[float]:
        """All inter-token times."""
        return [later - earlier for times in self.times for earlier, later in pairwise(times)]


def answer(
    engine: Engine,
    prompts: Sequence[list[int]],
    lengths: Sequence[int],
    *,
    temperature: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Answers:
    """Submit all prompts at once and step until the answers have these lengths; no stop token ends them earlier.

    Raises `OctavoError` if the engine fails, or if an answer has another length.
    """
    found = Answers([[] for _ in prompts], [[] for _ in prompts])
    begin = clock()
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        sampling = SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, seed=i)
        engine.submit(Request(id=str(i), tokens=prompt, sampling=sampling))
    while engine.has_work:
        outputs = engine.step()
        now = clock() - begin
        for output in outputs:
            if output.error is not None:
                raise OctavoError(output.error)
            found.tokens[int(output.id)] += output.tokens
            found.times[int(output.id)] += [now] * len(output.tokens)
    if (given := list(map(len, found.tokens))) != list(lengths):
        raise OctavoError(f"the engine generated {sum(given)} tokens, expected {sum(lengths)}")
    return found


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """`batch` concurrent sequences, each with `prompt` input tokens and `decode` output tokens.

    The rate of "prompt" counts prompt tokens until all first tokens have arrived. That of "decode" counts the output
    tokens after that point, that of "mixed" the output tokens over the whole time.
    """

    kind: Kind
    batch: int
    prompt: int
    decode: int

    @property
    def answer(self) -> int:
        """Output tokens of a sequence; a decode load starts after the first one."""
        return self.decode + (self.kind == "decode")

    @property
    def name(self) -> str:
        """Name in the table."""
        sizes = {"prompt": f"{self.prompt}", "decode": f"{self.decode}", "mixed": f"{self.prompt}+{self.decode}"}
        return f"{self.kind} {sizes[self.kind]}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition: tokens per second, and the medians of time to first token and of inter-token time in ms."""

    rate: float
    ttft: float
    itl: float | None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A load and its repetitions."""

    load: BenchLoad
    samples: tuple[Sample, ...]

    @property
    def mean(self) -> float:
        """Mean tokens per second."""
        return statistics.mean(sample.rate for sample in self.samples)

    @property
    def stddev(self) -> float:
        """Standard deviation of the rates; 0 for one repetition."""
        return statistics.stdev(sample.rate for sample in self.samples) if len(self.samples) > 1 else 0.0

    @property
    def ttft(self) -> float:
        """Time to first token in ms: median of the repetitions' medians."""
        return statistics.median(sample.ttft for sample in self.samples)

    @property
    def itl(self) -> float | None:
        """Inter-token time in ms: median of the medians; None if answers have one token."""
        values = [sample.itl for sample in self.samples if sample.itl is not None]
        return statistics.median(values) if values else None


def measure(engine: Engine, load: BenchLoad, repetitions: int) -> LoadResult:
    """Run a load `repetitions` times after one warm-up run. No prompt is ever repeated."""
    rng = random.Random(0)  # noqa: S311 -- no secrets
    return LoadResult(load, tuple(_sample(engine, load, rng) for _ in range(repetitions + 1))[1:])


def _sample(engine: Engine, load: BenchLoad, rng: random.Random) -> Sample:
    engine.reset_cache()
    prompts = [[rng.randrange(engine.config.own_vocab) for _ in range(load.prompt)] for _ in range(load.batch)]
    found = answer(engine, prompts, [load.answer] * load.batch)
    itl = 1e3 * statistics.median(found.between) if found.between else None
    return Sample(rate(load, found), 1e3 * statistics.median(found.first), itl)


def rate(load: BenchLoad, found: Answers) -> float:
    """Tokens per second, by the definition of the load's kind."""
    started = max(found.first)
    if load.kind == "prompt":
        return load.batch * load.prompt / started
    if load.kind == "decode":
        later = sum(at > started for times in found.times for at in times)
        return later / (found.seconds - started)
    return load.batch * load.decode / found.seconds
