"""Speculation changes when tokens come, never which: with any guesses, right or wrong."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import StepResult
from octavo_inference.core.request import Guidance
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.lookup import NO_GUESS, Guess
from octavo_inference.core.speculation.proposers import NgramProposer
from octavo_inference.core.speculation.recent_outputs import RecentOutputs
from octavo_inference.core.speculation.speculator import Speculator

from .echo import EchoBackend, Runner, alone, make_runner
from .fake_grammar import Compiler, grammar
from .late import LateBackend
from .loads import LIMITS, Load, loads
from .runs import RunningBackend
from .test_guided import REQUESTS


class Guesser(NgramProposer, ABC):
    """Guesses by a function in the place of a lookup."""

    def __init__(self) -> None:
        super().__init__(shortest=0)

    @abstractmethod
    def guess_of(self, sequence: Sequence, most: int) -> Guess:
        """At most so many tokens that may follow a sequence."""

    def _continuation(self, sequence: Sequence, most: int) -> Guess:
        return self.guess_of(sequence, most)


class Oracle(Guesser):
    """Guesses that are right up to a token that it chooses by chance."""

    def __init__(self, randomness: random.Random, seed: int = 5) -> None:
        super().__init__()
        self.randomness = randomness
        self.seed = seed

    def guess_of(self, sequence: Sequence, most: int) -> Guess:
        """The next tokens of the answer, with one that may be wrong."""
        done = sequence.num_known_tokens - sequence.prompt_len
        prompt = sequence.tokens[: sequence.prompt_len].tolist()
        right = alone(prompt, done + most, self.seed, sequence.index)[done:]
        count = self.randomness.randint(0, most)
        guessed = np.array(right[:count], np.int32)
        if count and self.randomness.random() < 0.7:
            guessed[self.randomness.randrange(count)] = self.randomness.randrange(60)
        return Guess(guessed, self.randomness.randint(1, 12))


def warm(run: Runner) -> None:
    """Let it measure steps without guesses."""
    run.submit("warm", [9], max_tokens=3, seed=1)
    run.finish()


def cached(run: Runner) -> set[bytes]:
    """The keys of the blocks in the prefix cache."""
    return set(run.engine.scheduler.pool.by_hash)


@settings(max_examples=scaled(80), deadline=None)
@given(
    load=loads(18, logprobs=(None, 1)),
    blocks=st.integers(10, 40),
    limits=LIMITS,
    runs=st.booleans(),
    randomness=st.randoms(use_true_random=False),
)
def test_answers_are_those_without_guesses(
    load: Load, blocks: int, limits: dict[str, Any], runs: bool, randomness: random.Random
) -> None:
    """With several answers to a request, preemption, swaps, chunks, stop ids, aborts, and runs of steps between."""
    backend = RunningBackend(blocks, lambda: randomness.randint(1, 9)) if runs else EchoBackend(blocks)
    speculator = Speculator(Oracle(randomness), 5)
    run = make_runner(backend, max_model_len=40, pace=1e-6, speculator=speculator, **limits)
    load.run(run)
    run.engine.check()
    steps = run.engine.stats().steps
    assert steps.count == len(backend.batches)
    rejected = speculator.totals.drafted - speculator.totals.accepted
    assert steps.rows + steps.prefill + rejected == sum(len(batch.tokens) for batch in backend.batches)
    assert speculator.totals.accepted <= speculator.totals.drafted


@settings(max_examples=scaled(60), deadline=None)
@given(
    load=loads(18),
    blocks=st.integers(10, 40),
    limits=LIMITS,
    rest=st.integers(0, 4),
    randomness=st.randoms(use_true_random=False),
)
def test_a_device_that_is_ahead_gives_the_same_answers(
    load: Load, blocks: int, limits: dict[str, Any], rest: int, randomness: random.Random
) -> None:
    """Steps with guesses wait for the one in flight; the others, while guesses rest, are planned ahead."""

    class Moody(Oracle):
        """Has nothing to offer now and then."""

        def guess_of(self, sequence: Sequence, most: int) -> Guess:
            return super().guess_of(sequence, most if self.randomness.random() < 0.5 else 0)

    backend = LateBackend(blocks, longest=40)
    speculator = Speculator(Moody(randomness), 5, adjusted=False, rest=rest)
    run = make_runner(backend, max_model_len=40, pace=1e-6, speculator=speculator, **limits)
    load.run(run)
    run.engine.check()


def test_steps_are_planned_ahead_while_guesses_rest() -> None:
    class Silent(Guesser):
        def guess_of(self, sequence: Sequence, most: int) -> Guess:
            return NO_GUESS

    waits = []
    for rest in (0, 9):
        backend = LateBackend(64)
        run = make_runner(backend, speculator=Speculator(Silent(), 4, rest=rest))
        run.submit("r", [1, 2, 3], max_tokens=41, seed=5)
        alone_in_flight = 0
        while run.engine.has_work:
            run.step()
            alone_in_flight += not run.engine._pending
        assert run.tokens["r", 0] == alone([1, 2, 3], 41, 5)
        waits.append(alone_in_flight)
    assert waits[0] == 41, "each step waits"
    assert waits[1] <= 6, "one in ten does"


@pytest.mark.parametrize(("wrong", "steps"), [(0, 5), (1, 20)])
def test_right_guesses_save_steps_and_wrong_ones_none(wrong: int, steps: int) -> None:
    class Always(Guesser):
        def guess_of(self, sequence: Sequence, most: int) -> Guess:
            done = sequence.num_known_tokens - sequence.prompt_len
            right = np.array(alone(sequence.tokens[: sequence.prompt_len].tolist(), done + most, 5)[done:], np.int32)
            return Guess((right + wrong) % 60, 9)

    speculator = Speculator(Always(), 4)
    run = make_runner(speculator=speculator)
    run.submit("r", [1, 2, 3], max_tokens=20, seed=5)
    assert run.finish() == {("r", 0): alone([1, 2, 3], 20, 5)}
    assert speculator.totals.accepted == (0 if wrong else speculator.totals.drafted)
    # The prompt's step gives the first token. With right guesses, each other step gives five.
    assert len(run.engine.backend.batches) == steps


class Sick(EchoBackend):
    """Its KV of token 7 is no number, and neither is the next token of a sequence that reads it."""

    def __init__(self) -> None:
        super().__init__(16)
        self.cleared: set[int] = set()

    def step(self, batch: Batch) -> StepResult:
        result = super().step(batch)
        owners = np.searchsorted(batch.query_start, batch.sample.row, side="right") - 1
        tokens = [
            -1 if 7 in self.read(batch, owner, position) else token
            for owner, position, token in zip(owners, batch.sample.position, result.tokens.tolist(), strict=True)
        ]
        return replace(result, tokens=np.array(tokens, np.int32))

    def clear_blocks(self, blocks: list[int]) -> None:
        super().clear_blocks(blocks)
        self.cleared.update(blocks)


def test_blocks_with_guesses_that_are_no_numbers_are_cleared_before_others_get_them() -> None:
    class Poison(Guesser):
        def guess_of(self, sequence: Sequence, most: int) -> Guess:
            return Guess(np.full(min(most, 6), 7, np.int32), 9)

    backend = Sick()
    run = make_runner(backend, speculator=Speculator(Poison(), 6))
    run.submit("r", [1, 2, 3], max_tokens=20, seed=5)
    run.finish()
    assert run.final["r", 0].finish_reason == "error"
    written = {int(slot) // backend.block_size for batch in backend.batches for slot in batch.slots[0]}
    assert written <= backend.cleared
    assert len(written) > 1, "the guesses reached another block"


def test_a_stop_id_within_a_draft_ends_the_answer_there() -> None:
    answer = alone([1, 2, 3], 12, 5)
    run = make_runner(speculator=Speculator(Oracle(random.Random(3)), 8))
    run.submit("r", [1, 2, 3], max_tokens=12, seed=5, stop_token_ids=(answer[6],))
    assert run.finish()["r", 0] == answer[: answer.index(answer[6]) + 1]


def test_log_probabilities_come_with_each_token() -> None:
    run = make_runner(speculator=Speculator(Oracle(random.Random(2)), 5))
    run.submit("r", [1, 2, 3], max_tokens=15, seed=5, logprobs=1)
    outputs = []
    while run.engine.has_work:
        outputs += run.step()
    assert [token for output in outputs for token in output.tokens] == alone([1, 2, 3], 15, 5)
    assert all(len(output.tokens) == len(output.logprobs or []) == 1 for output in outputs)


def test_the_prefix_cache_has_what_was_accepted_and_no_guess() -> None:
    plain, guessing = make_runner(), make_runner(speculator=Speculator(Oracle(random.Random(4)), 5))
    for run in (plain, guessing):
        run.submit("r", [1, 2, 3], max_tokens=30, seed=5)
        run.finish()
    assert cached(guessing) == cached(plain)


@pytest.mark.parametrize("blocks", [11, 12, 14])
def test_guesses_take_no_block_that_another_sequence_would_need(blocks: int) -> None:
    """With hardly any empty block, drafts are short, and no sequence is preempted more often than without."""
    preempted = []
    for speculator in (None, Speculator(Oracle(random.Random(5)), 8)):
        run = make_runner(blocks=blocks, speculator=speculator)
        for number in range(3):
            run.submit(str(number), [number, 2, 3], max_tokens=12, seed=5)
        found = run.finish()
        assert found == {(str(n), 0): alone([n, 2, 3], 12, 5) for n in range(3)}
        preempted.append(run.engine.scheduler.preemptions)
        assert speculator is None or speculator.totals.drafted > 5
    assert preempted[1] <= preempted[0]


def test_a_text_that_repeats_is_guessed_from_itself() -> None:
    # A prompt whose first token of the answer stands behind an earlier 8.
    prompts = ([8, first, 1, other, 8] for first in range(60) for other in range(60))
    prompt = next(each for each in prompts if alone(each, 1, 5) == [each[1]])
    speculator = Speculator(NgramProposer(shortest=2), 6)
    run = make_runner(speculator=speculator)
    warm(run)
    run.submit("r", prompt, max_tokens=5, seed=5)
    assert run.finish()["r", 0] == alone(prompt, 5, 5)
    assert speculator.totals.drafted > 0


def test_an_answer_is_guessed_from_an_earlier_one_of_the_same_tenant_alone() -> None:
    recent = RecentOutputs(100)
    speculator = Speculator(NgramProposer(shortest=2, recent=recent), 6)
    run = make_runner(speculator=speculator)
    accepted = []
    for name, tenant in (("first", "a"), ("again", "a"), ("other", "b")):
        before = speculator.totals.accepted
        run.submit(name, [1, 2, 3], max_tokens=20, seed=5, salt=tenant)
        assert run.finish()[name, 0] == alone([1, 2, 3], 20, 5)
        accepted.append(speculator.totals.accepted - before)
    assert accepted[1] > 10
    assert accepted[2] < accepted[1] / 2


@pytest.mark.parametrize("count", [1, 3])
def test_an_end_by_length_is_where_it_is_without(count: int) -> None:
    run = make_runner(speculator=Speculator(Oracle(random.Random(6)), 8))
    run.submit("r", [1, 2, 3], max_tokens=count, seed=5)
    assert run.finish()["r", 0] == alone([1, 2, 3], count, 5)


class Remembered(Guesser):
    """Guesses from the answers of an earlier run, each token wrong by chance."""

    def __init__(self, answers: dict[tuple[str, int], list[int]], randomness: random.Random) -> None:
        super().__init__()
        self.answers = answers
        self._randomness = randomness

    def guess_of(self, sequence: Sequence, most: int) -> Guess:
        answer = self.answers.get((sequence.request.id, sequence.index), [])
        done = sequence.num_known_tokens - sequence.prompt_len
        right = answer[done : done + self._randomness.randint(0, most)]
        wrong = self._randomness.random() / 2
        guessed = [self._randomness.randrange(60) if self._randomness.random() < wrong else token for token in right]
        return Guess(np.array(guessed, np.int32), self._randomness.randint(1, 12))


@settings(max_examples=scaled(60), deadline=None)
@given(
    requests=REQUESTS,
    blocks=st.integers(12, 24),
    limits=LIMITS,
    arrivals=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    stops=st.sets(st.integers(0, 59), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_guided_answers_are_those_without_guesses(
    requests: list[Any], blocks: int, limits: dict[str, Any], arrivals: list[int], stops: set[int],
    seed: int,
) -> None:  # fmt: skip
    """With grammars, thinking and its budget, allowed ids, forced tokens and several answers to a request."""
    # Not drawn by hypothesis: how many numbers a run takes depends on when a thread has compiled a grammar.
    randomness = random.Random(seed)
    answers: dict[tuple[str, int], list[int]] = {}
    for speculator in (None, Speculator(Remembered(answers, randomness), 5)):
        compiler = Compiler()
        run = make_runner(
            EchoBackend(blocks), max_model_len=36, load_vocabulary=lambda each=compiler: each, speculator=speculator,
            **limits,
        )  # fmt: skip
        for i, (prompt, count, n, guidance, allowed) in enumerate(requests):
            given = {"guidance": guidance, "allowed_token_ids": allowed, "stop_token_ids": tuple(stops)}
            run.submit(str(i), prompt, max_tokens=count, n=n, seed=5, **given)
            for _ in range(arrivals[i]):
                run.engine.wait()
                run.step()
        found = run.finish()
        if speculator is None:
            answers.update(found)
        assert found == answers
        run.engine.check()


def test_a_json_answer_is_guessed_within_its_grammar() -> None:
    """Guesses that the grammar rules out are left out, and masks behind the others are computed."""
    text = grammar(3, 12)
    answers = {}
    for speculator in (None, Speculator(Remembered(answers, random.Random(1)), 6)):
        run = make_runner(load_vocabulary=Compiler, speculator=speculator)
        warm(run)
        before = len(run.engine.backend.batches)
        run.submit("r", [1, 2, 3], max_tokens=12, seed=5, guidance=Guidance(grammar=text))
        answers.update(run.finish())
        steps = len(run.engine.backend.batches) - before
    assert speculator is not None
    assert speculator.totals.accepted > 0
    assert steps < len(answers["r", 0])
