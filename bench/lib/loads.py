"""The loads that every system runs: random ids and forced output lengths, from a seed. Standard library only."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

SEED = 0


@dataclass(frozen=True)
class Load:
    """Prompts that arrive at once, and the output tokens of each. `tokens` is the number that its rate counts."""

    name: str
    prompts: list[list[int]]
    output_lengths: list[int]
    tokens: int


def mix(count: int) -> Load:
    """Prompts of 50 to 300 tokens, outputs of 50 to 150: the throughput load. Output tokens count."""
    rng = random.Random(SEED)
    prompts = [ids(rng, rng.randint(50, 300)) for _ in range(count)]
    lengths = [rng.randint(50, 150) for _ in range(count)]
    return Load(f"mix-{count}", prompts, lengths, sum(lengths))


def single(tokens: int) -> Load:
    """One stream: 64 tokens in. Output tokens count."""
    return Load(f"single-{tokens}", [ids(random.Random(SEED), 64)], [tokens], tokens)


def stream(tokens: int) -> Load:
    """One stream that hardly has a prompt: 4 tokens in. Output tokens count, each of which reads all weights."""
    return Load(f"stream-{tokens}", [ids(random.Random(SEED), 4)], [tokens], tokens)


def prefill(tokens: int) -> Load:
    """One prompt and the first token of its answer. Prompt tokens count."""
    return Load(f"prefill-{tokens}", [ids(random.Random(SEED), tokens)], [1], tokens)


def load(name: str) -> Load:
    """A load by name: "single-<tokens out>", "stream-<tokens out>", "mix-<requests>" or "prefill-<tokens in>"."""
    kind, _, count = name.partition("-")
    return {"single": single, "stream": stream, "mix": mix, "prefill": prefill}[kind](int(count))


def ids(rng: random.Random, count: int) -> list[int]:
    """Random token ids that exist in every tested vocabulary and end no sequence."""
    return [rng.randint(100, 40_000) for _ in range(count)]


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]
