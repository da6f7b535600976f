"""What requests say about their tokens, through the engine: on the reference backend, and on one that computes late."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import RequestError
from octavo_inference.core.model_input import StepResult
from octavo_inference.core.sampling import sample

from .echo import EOS, VOCAB, Runner, make_runner
from .late import LateBackend

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the reference backend needs torch")

Make = Callable[..., Any]
PROMPT = [5, 9, 12, 5, 9]


class Falling(LateBackend):
    """Chooses by the rule over fixed logits: id 0 is the most likely, then 1, and so on. Works from changes alone."""

    def step(self, batch: Any) -> StepResult:
        batch.tokens[batch.tokens < 0] = 0  # behind a token that could not be chosen; nothing is read from there
        super().step(batch)
        return sample(np.tile(-np.arange(VOCAB, dtype=np.float32), (len(batch.sample.row), 1)), batch.sample)


class Hashed(LateBackend):
    """Chooses by the rule over logits that are a hash of all that a sequence can read through its block table."""

    def step(self, batch: Any) -> StepResult:
        batch.tokens[batch.tokens < 0] = 0
        super().step(batch)
        logits = []
        for row in batch.sample.row:
            owner = int(np.searchsorted(batch.query_start, row, side="right")) - 1
            context = self.kv[batch.block_table[0, owner]].reshape(-1)[: int(batch.positions[row]) + 1]
            logits.append(np.random.default_rng(context.astype(np.uint64)).standard_normal(VOCAB) * 2)
        rows = np.array(logits, np.float32).reshape(-1, VOCAB)
        return sample(rows, batch.sample)


IDS = st.integers(0, VOCAB - 1)
GIVEN = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1.0]), "max_tokens": st.integers(1, 9), "n": st.integers(1, 2)},
    optional={
        "logit_bias": st.dictionaries(IDS, st.floats(-9, 9), max_size=5),
        "allowed_token_ids": st.lists(IDS, min_size=2, max_size=9, unique=True),
        "bad_words": st.lists(st.lists(IDS, min_size=1, max_size=3), max_size=6),
        "frequency_penalty": st.sampled_from([0.7]),
        "min_tokens": st.just(1),
        "logprob_token_ids": st.lists(IDS, min_size=1, max_size=3, unique=True),
    },
).filter(
    lambda given: (
        not {w[0] for w in given.get("bad_words", ()) if len(w) == 1} >= set(given.get("allowed_token_ids", [-1]))
    )
)
REQUESTS = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=14), GIVEN), min_size=1, max_size=6)


def told(requests: list[tuple[list[int], dict[str, Any]]], first: int, **limits: Any) -> dict[Any, Any]:
    """What the answers are, with the log-probabilities; request i is called first + i."""
    backend = Hashed(limits.pop("blocks", 64), rows=limits.get("max_running", 8))
    run = make_runner(backend, **limits)
    for i, (prompt, params) in enumerate(requests, first):
        run.submit(str(i), prompt, seed=i, **params)
    found: dict[Any, Any] = {}
    while run.engine.has_work:
        for output in run.step():
            tokens, logprobs, reason = found.get((output.id, output.index), ([], [], None))
            found[output.id, output.index] = (
                tokens + output.tokens,
                logprobs + (output.logprobs or []),
                reason or output.finish_reason,
            )
    return found


@settings(max_examples=scaled(60), deadline=None)
@given(
    requests=REQUESTS,
    blocks=st.integers(8, 20),
    max_running=st.integers(1, 4),
    budget=st.integers(5, 32),
    host_blocks=st.sampled_from([0, 6]),
)
def test_a_request_gets_in_any_company_what_it_gets_alone(
    requests: list[tuple[list[int], dict[str, Any]]], blocks: int, max_running: int, budget: int, host_blocks: int
) -> None:
    together = told(requests, 0, blocks=blocks, max_running=max_running, budget=budget, host_blocks=host_blocks)
    alone: dict[Any, Any] = {}
    for i, request in enumerate(requests):
        alone |= told([request], i)
    assert together == alone


def answer(blocks: int = 64, **given: Any) -> list[int]:
    run = make_runner(Falling(blocks))
    run.submit("r", PROMPT, **{"max_tokens": 5, "ignore_eos": True, **given})
    run.finish()
    return run.tokens["r", 0]


def test_without_rules_the_most_likely_token_comes() -> None:
    assert answer() == [0] * 5


def test_logit_bias_moves_the_choice() -> None:
    assert answer(logit_bias={7: 8.0, 3: 2.9}) == [7] * 5


def test_only_allowed_ids_are_chosen() -> None:
    assert answer(allowed_token_ids=[40, 30], frequency_penalty=2.0, max_tokens=8) == [30] * 6 + [40, 30]


def test_a_bad_word_of_one_token_never_comes() -> None:
    assert answer(bad_words=[[0], [1]]) == [2] * 5


def test_bad_words_are_not_completed() -> None:
    assert answer(bad_words=[[0, 0], [0, 1, 0], [1, 1]], max_tokens=7) == [0, 1, 2, 0, 1, 2, 0]


def test_tokens_of_the_prompt_do_not_begin_a_bad_word() -> None:
    assert answer(bad_words=[[9, 0]]) == [0] * 5


def test_an_allowed_stop_token_waits_for_min_tokens() -> None:
    given = {"allowed_token_ids": [EOS, 3], "logit_bias": {EOS: 100.0}, "ignore_eos": False}
    assert answer(min_tokens=2, **given) == [3, 3, EOS]


def test_an_answer_ends_where_its_rules_leave_no_token() -> None:
    run = make_runner(Falling(64))
    run.submit("r", PROMPT, allowed_token_ids=[4], bad_words=[[4, 4, 4]], max_tokens=9)
    run.submit("other", PROMPT, max_tokens=9)
    run.finish()
    assert run.tokens["r", 0] == [4, 4]
    assert run.final["r", 0].finish_reason == "stop"
    assert run.final["r", 0].stop_reason is None
    assert run.tokens["other", 0] == [0] * 9


def test_named_ids_are_reported_per_token() -> None:
    run = make_runner(Falling(64))
    run.submit("r", PROMPT, logprob_token_ids=[9, 0], max_tokens=2)
    outputs = []
    while run.engine.has_work:
        outputs += run.step()
    [entry] = outputs[0].logprobs
    assert entry.top_ids == [9, 0]
    assert entry.top_logprobs[1] - entry.top_logprobs[0] == pytest.approx(9.0)
    assert entry.logprob == entry.top_logprobs[1]
    assert all(len(output.logprobs) == len(output.tokens) for output in outputs)


def test_a_row_that_had_rules_has_none_for_the_next_sequence() -> None:
    run = make_runner(Falling(64), max_running=1)
    run.submit("ruled", PROMPT, bad_words=[[0]], logit_bias={9: 50.0}, logprob_token_ids=[3], max_tokens=2)
    run.submit("plain", PROMPT, presence_penalty=0.5, logprobs=1, max_tokens=3)
    reported = []
    while run.engine.has_work:
        reported += [entry.top_ids for output in run.step() for entry in output.logprobs]
    assert reported == [[3], [3], [0], [0], [0]]
    assert run.tokens["ruled", 0] == [9, 9]
    assert run.tokens["plain", 0] == [0, 0, 0]


def test_siblings_follow_their_own_outputs() -> None:
    run = make_runner(Falling(64))
    run.submit("r", PROMPT, n=3, bad_words=[[0, 0]], temperature=5.0, seed=4, max_tokens=12)
    run.finish()
    answers = [run.tokens["r", index] for index in range(3)]
    assert all((0, 0) not in itertools.pairwise(tokens) for tokens in answers)
    assert len({tuple(tokens) for tokens in answers}) == 3


def test_rules_return_with_a_preempted_sequence() -> None:
    def run(blocks: int) -> Runner:
        run = make_runner(Falling(blocks), max_running=4)
        for i in range(4):
            run.submit(str(i), [i] * 9, bad_words=[[0, 0], [1, i]], allowed_token_ids=range(i + 5), max_tokens=14)
        run.finish()
        return run

    small, large = run(13), run(64)
    assert small.engine.scheduler.preemptions > 0
    assert small.tokens == large.tokens


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logit_bias": {61: 1.0}}, "logit_bias: token id is 61, it must be from 0 to 60"),
        ({"logit_bias": {3: 101.0}}, "logit_bias: bias of token id 3 is 101.0, it must be from -100.0 to 100.0"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias: bias of token id 3 is nan"),
        ({"logit_bias": [(i, 1.0) for i in range(1025)]}, "logit_bias has 1025 token ids, at most 1024 are possible"),
        ({"logit_bias": [(3, 1.0), (3, 2.0)]}, "logit_bias: token id 3 is in it more than once"),
        ({"allowed_token_ids": [0, -1]}, "allowed_token_ids: token id is -1, it must be from 0 to 60"),
        ({"allowed_token_ids": [2, 2]}, "allowed_token_ids: token id 2 is in it more than once"),
        (
            {"allowed_token_ids": [2, 3], "bad_words": [[3], [2]]},
            "allowed_token_ids: each of them is a sequence of bad_w",
        ),
        ({"bad_words": [[1]] * 129}, "bad_words has 129 sequences, at most 128 are possible"),
        (
            {"bad_words": [[1] * 1025, [2] * 1024]},
            "bad_words has 2049 tokens in all sequences, at most 2048 are possible",
        ),
        ({"bad_words": [[1], []]}, "bad_words: sequence 1 has no tokens"),
        ({"bad_words": [[61]]}, "bad_words: token id is 61"),
        ({"logprob_token_ids": [61]}, "logprob_token_ids: token id is 61"),
        ({"logprob_token_ids": [1, 1]}, "logprob_token_ids: token id 1 is in it more than once"),
        ({"logprob_token_ids": list(range(129))}, "logprob_token_ids has 129 token ids, at most 128 are possible"),
        ({"logprob_token_ids": [1], "logprobs": 2}, "logprobs is 2 with logprob_token_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21, it must be from 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1, it must be from 0 to 20"),
    ],
)
def test_refuses_rules_out_of_bounds(runner: Make, given: dict[str, Any], message: str) -> None:
    run = runner()
    with pytest.raises(RequestError, match=message) as refused:
        run.submit("r", [1], **given)
    assert refused.value.field in given
    assert not run.engine.has_work


def test_a_prompt_may_not_report_more_than_fits_into_a_message(runner: Make) -> None:
    run = runner(max_model_len=20_000)
    with pytest.raises(RequestError, match="prompt_logprobs 20 over 13000 prompt tokens are 273000 log-probabilities"):
        run.submit("r", [1] * 13_000, prompt_logprobs=20)


def test_a_step_without_rules_sends_none(runner: Make) -> None:
    run = make_runner(LateBackend(64))
    run.submit("r", PROMPT)
    run.finish()
    assert {change.field for step in run.engine.backend.steps for change in step.changes} == {
        "tokens",
        "blocks",
        "sampling",
    }
    assert not any(any(step.sample.penalties) for step in run.engine.backend.steps)


def test_rules_are_sent_once() -> None:
    run = make_runner(LateBackend(64))
    run.submit("r", PROMPT, allowed_token_ids=range(40), bad_words=[[1, 2]], max_tokens=6)
    run.finish()
    sent = [change.field for step in run.engine.backend.steps for change in step.changes]
    assert sent.count("rules") == sent.count("mask") == 1
