"""Grammars of the tests: which ids may follow is a hash of the ids before."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Self

import numpy as np

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Guide
from octavo_inference.core.logit_rules import bitmask
from octavo_inference.core.model_input import Int32
from octavo_inference.core.request import Guidance
from octavo_inference.core.sampling import mix, sequence_seed

from .echo import EOS, VOCAB, allowed_answer

ENDS = bitmask((EOS,), VOCAB)


def grammar(seed: int, length: int, breaks_at: int = -1) -> str:
    """The text of a grammar of `length` ids, whose mask cannot be computed behind `breaks_at` of them."""
    return json.dumps({"seed": seed, "length": length, "breaks_at": breaks_at})


class FakeMatcher:
    """`Matcher` of a text of `grammar`."""

    def __init__(self, text: str) -> None:
        try:
            self._rule = json.loads(text)
        except ValueError:
            raise RequestError("no grammar of the tests", "grammar") from None
        self._ids: list[int] = []

    def copy(self) -> Self:
        twin = type(self)(json.dumps(self._rule))
        twin._ids = self._ids[:]
        return twin

    def fill(self, mask: Int32) -> None:
        if len(self._ids) == self._rule["breaks_at"]:
            raise RequestError("too complex", "grammar")
        mask[:] = bitmask(tuple(self.allowed), 32 * len(mask))

    def consume(self, token: int) -> None:
        if token not in self.allowed:
            raise RequestError(f"{token} after {self._ids} is not one of {self.allowed}", "grammar")
        self._ids.append(token)

    def forced(self) -> list[int]:
        twin, found = self.copy(), []
        while len(twin.allowed) == 1 and not twin.is_complete:
            found += twin.allowed
            twin.consume(found[-1])
        return found

    @property
    def is_complete(self) -> bool:
        return EOS in self._ids or len(self._ids) >= self._rule["length"]

    @property
    def allowed(self) -> list[int]:
        if self.is_complete:
            return [EOS]
        state = self._rule["seed"]
        for token in self._ids:
            state = mix(state ^ token + 1)
        if state % 3 == 0:
            return [state % (VOCAB - 1)]
        ids = {mix(state ^ number) % (VOCAB - 1) for number in range(2 + state % 5)}
        return sorted(ids | ({EOS} if self._ids and state % 7 == 0 else set()))


class Compiler:
    """Counts its grammars, and waits with each of them while `gate` is closed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, text: str) -> FakeMatcher:
        assert self.gate.wait(30)
        self.texts.append(text)
        return FakeMatcher(text)


def expected(
    prompt: Sequence[int],
    guidance: Guidance | None,
    *,
    count: int,
    seed: int,
    index: int = 0,
    stops: frozenset[int] = frozenset(),
    allowed: Sequence[int] = (),
) -> tuple[list[int], str]:
    """The answer of one sequence, computed without an engine, and why it ends."""
    guide = None
    if guidance is not None and guidance.constrains:
        guide = Guide(guidance, FakeMatcher(guidance.grammar) if guidance.grammar else None, ENDS)
    mask = bitmask(tuple(allowed) or tuple(range(VOCAB)), VOCAB)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        row = mask.copy()
        if guide is not None:
            guide.fill(row)
            row &= mask
        unmasked = guide is None and not allowed
        token = allowed_answer(sequence_seed(seed, index), np.array(tokens, np.int64), None if unmasked else row)
        if token < 0:
            return tokens[len(prompt) :], "stop"
        tokens.append(token)
        if token == EOS or token in stops:
            return tokens[len(prompt) :], "stop"
        if guide is not None:
            guide.advance(token)
            if guide.is_complete:
                return tokens[len(prompt) :], "stop"
    return tokens[len(prompt) :], "length"
