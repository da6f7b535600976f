"""The loads every contestant runs: random ids and forced output lengths, from a seed. Standard library only."""

from __future__ import annotations

import random
from dataclasses import dataclass

SEED = 0


@dataclass(frozen=True)
class Load:
    """Prompts that arrive at once, and how many tokens each must produce."""

    name: str
    prompts: list[list[int]]
    output_lengths: list[int]

    @property
    def prompt_tokens(self) -> int:
        """Tokens in."""
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        """Tokens out."""
        return sum(self.output_lengths)


def mix(count: int, seed: int = SEED) -> Load:
    """Prompts of 50 to 300 tokens, outputs of 50 to 150: the offline throughput load."""
    rng = random.Random(seed)
    prompts = [_ids(rng, rng.randint(50, 300)) for _ in range(count)]
    return Load(f"mix-{count}", prompts, [rng.randint(50, 150) for _ in range(count)])


def single(tokens: int, seed: int = SEED) -> Load:
    """One stream: 64 tokens in."""
    return Load(f"single-{tokens}", [_ids(random.Random(seed), 64)], [tokens])


def load(name: str) -> Load:
    """A load by name: "single-<tokens out>" or "mix-<requests>"."""
    kind, _, count = name.partition("-")
    return {"single": single, "mix": mix}[kind](int(count))


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(100, 40_000) for _ in range(count)]
