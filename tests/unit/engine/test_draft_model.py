"""A draft model keeps the K and V of every sequence in the engine's own blocks, whatever happens to these."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import StepResult
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.core.speculation.proposers import Offer
from octavo_inference.core.speculation.speculator import Draft, Speculator

from .echo import VOCAB, EchoBackend, Runner, alone, make_runner
from .loads import LIMITS, Load, loads
from .runs import RunningBackend


class Sometimes(RunningBackend):
    """Guesses the right token, but for multiples of `wrong`: there it guesses the next id."""

    def __init__(self, num_blocks: int, wrong: int) -> None:
        super().__init__(num_blocks)
        self.wrong = wrong

    def step(self, batch: Batch) -> StepResult:
        result = super().step(batch)
        tokens = result.tokens
        return replace(result, tokens=np.where(tokens % self.wrong == 0, tokens + 1, tokens).astype(np.int32))


class Checked(Speculator):
    """Each draft must be right up to the first multiple of `wrong`: else the draft model has read other tokens."""

    wrong = 0
    rests: random.Random | None = None

    def wanted(self, *given: Any) -> list[Offer]:
        """None by chance: then steps without guesses are in between."""
        return [] if self.rests and self.rests.random() < 0.5 else super().wanted(*given)

    def verified(self, draft: Draft, accepted: int) -> None:
        super().verified(draft, accepted)
        sequence = draft.sequence
        done = sequence.num_known_tokens - sequence.prompt_len
        following = alone(sequence.tokens[: sequence.prompt_len].tolist(), done + 1, 5, sequence.index)[done]
        if accepted < len(draft.tokens) and following not in sequence.stops:
            assert self.wrong
            assert following % self.wrong == 0


def speculator(backend: EchoBackend, most: int = 4, *, tokens: int = 16, wrong: int = 0) -> Checked:
    made = Checked(DraftModel(backend, group=0, tokens=tokens, vocab=VOCAB), most)
    made.wrong = wrong
    return made


def runner(draft: EchoBackend, blocks: int = 64, **given: Any) -> Runner:
    wrong = draft.wrong if isinstance(draft, Sometimes) else 0
    return make_runner(EchoBackend(blocks), speculator=speculator(draft, wrong=wrong), **given)


@settings(max_examples=scaled(80), deadline=None)
@given(
    load=loads(18),
    blocks=st.integers(10, 40),
    limits=LIMITS,
    wrong=st.integers(2, 9),
    tokens=st.integers(8, 32),
    rests=st.randoms(use_true_random=False),
)
def test_guesses_are_of_the_sequences_own_tokens(
    load: Load, blocks: int, limits: dict[str, Any], wrong: int, tokens: int, rests: random.Random
) -> None:
    """With several answers to a request, preemption, swaps, prefixes that are shared, stop ids, aborts and rests."""
    made = speculator(Sometimes(blocks, wrong), tokens=tokens, wrong=wrong)
    made.rests = rests
    run = make_runner(EchoBackend(blocks), max_model_len=40, pace=1e-6, speculator=made, **limits)
    load.run(run)
    run.engine.check()
    assert not made._proposer._progress, "nothing is kept of sequences that have ended"  # type: ignore[attr-defined]


def test_a_model_that_guesses_right_saves_its_share_of_steps() -> None:
    run = runner(RunningBackend(64))
    run.submit("r", [1, 2, 3], max_tokens=25, seed=5)
    assert run.finish() == {("r", 0): alone([1, 2, 3], 25, 5)}
    # The prompt, a step whose time is measured, then five tokens in each.
    assert len(run.engine.backend.batches) <= 2 + -(-24 // 5)


def test_guesses_take_one_launch_while_they_are_right_in_part() -> None:
    """A sequence lacks its last token alone after a wrong guess: it is computed together with the next guesses."""
    draft = Sometimes(64, 2)
    run = runner(draft)
    run.submit("r", [1, 2, 3], max_tokens=25, seed=5)
    run.finish()
    drafts = run.engine.speculation.drafts
    assert len(draft.planned) <= drafts
    assert len(draft.batches) - sum(draft.ran) <= drafts


def test_a_prefix_that_the_cache_has_is_not_computed_again() -> None:
    draft = RunningBackend(64)
    run = runner(draft)
    prompt = [token % 50 for token in range(33)]
    tokens = []
    for name in ("first", "again"):
        before = sum(len(batch.tokens) for batch in draft.batches)
        run.submit(name, prompt, max_tokens=12, seed=5)
        assert run.finish()[name, 0] == alone(prompt, 12, 5)
        tokens.append(sum(len(batch.tokens) for batch in draft.batches) - before)
    assert tokens[1] <= tokens[0] - 32


def test_after_a_reset_nothing_is_taken_from_blocks() -> None:
    draft = RunningBackend(64)
    run = runner(draft)
    for _ in range(2):
        run.submit("r", [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=6, seed=5)
        run.finish()
        run.engine.scheduler.reset_cache()
        draft.kv[:] = -1  # it would fail to read that


@pytest.mark.parametrize("blocks", range(5, 12))
def test_a_block_that_others_wrote_to_is_not_taken_for_what_it_held(blocks: int) -> None:
    """The engine computes the first prompt in the same blocks again, and the draft model does not."""
    made = speculator(RunningBackend(blocks))
    run = make_runner(EchoBackend(blocks), speculator=made)
    # The other one leaves one of their blocks half full.
    first, other = [*range(1, 14)], [9, 8, 7, 6]
    for prompt, most in 12 * [(first, 4), (other, 4), (first, 0), (first, 4)]:
        made._most = most
        run.tokens.clear()
        run.submit("r", prompt, max_tokens=6, seed=5)
        assert run.finish()["r", 0] == alone(prompt, 6, 5)
        if most:
            run.engine.scheduler.pool.reset()


def test_a_long_prompt_is_computed_in_pieces_and_guessed_from_then_on() -> None:
    draft = RunningBackend(64)
    made = speculator(draft, tokens=8)
    run = make_runner(EchoBackend(64), budget=64, speculator=made)
    prompt = [token % 50 for token in range(37)]
    run.submit("r", prompt, max_tokens=20, seed=5)
    assert run.finish()["r", 0] == alone(prompt, 20, 5)
    assert max(len(batch.tokens) for batch in draft.batches) <= 8
    assert made.totals.accepted > 5


@pytest.mark.parametrize("unknown", [VOCAB - 1, 3])
def test_ids_that_the_models_do_not_share_are_no_guesses(unknown: int) -> None:
    draft = RunningBackend(64)
    made = Speculator(DraftModel(draft, group=0, tokens=16, vocab=unknown), 4)
    run = make_runner(EchoBackend(64), speculator=made)
    run.submit("r", [1, 2, 1], max_tokens=20, seed=5)
    assert run.finish()["r", 0] == alone([1, 2, 1], 20, 5)
    assert all((batch.tokens < unknown).all() for batch in draft.batches)
    if unknown == 3:
        assert len(draft.batches) < 3, "it is not asked again about a sequence that it cannot read"


def test_a_guess_that_is_no_number_is_none() -> None:
    class Broken(RunningBackend):
        def step(self, batch: Batch) -> StepResult:
            result = super().step(batch)
            return replace(result, tokens=np.full_like(result.tokens, -1))

    run = runner(Broken(64))
    run.submit("r", [1, 2, 3], max_tokens=12, seed=5)
    assert run.finish()["r", 0] == alone([1, 2, 3], 12, 5)
    assert run.engine.speculation.drafted == 0


def test_sequences_with_unlike_lengths_guess_within_their_own_blocks() -> None:
    """The echo fails if a launch reads a place that nobody wrote, and `Checked` if it wrote into another's block."""
    randomness = random.Random(4)
    run = runner(RunningBackend(64), max_running=8)
    for number in range(5):
        run.submit(str(number), [number, 2, 3], max_tokens=3 + 4 * number, seed=5)
        for _ in range(randomness.randint(0, 2)):
            run.step()
    found = run.finish()
    assert found == {(str(n), 0): alone([n, 2, 3], 3 + 4 * n, 5) for n in range(5)}
    totals = run.engine.speculation
    assert totals is not None
    assert totals.accepted == totals.drafted > 20
