"""Requests for an embedding: prompt chunks only, in any company, with the same bits as alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import RequestError
from octavo_inference.core.request import DEADLINE, Request, SamplingParams
from octavo_inference.core.scheduler_output import SchedulerOutput
from octavo_inference.core.swapping import swap_out

from .echo import EchoBackend, Runner, alone, embedding_of, make_runner
from .late import LateBackend

Make = Callable[..., Any]
PROMPT = [5, 9, 2, 7, 1, 1, 3, 8, 4, 6, 2, 2, 9]

REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=22),
        st.integers(1, 9),
        st.sampled_from([None, "cls", "mean", "last"]),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=scaled(80), deadline=None)
@given(
    requests=REQUESTS,
    overlapped=st.booleans(),
    blocks=st.integers(8, 24),
    max_running=st.integers(1, 5),
    budget=st.integers(5, 32),
    caching=st.booleans(),
    host_blocks=st.sampled_from([0, 6]),
    arrivals=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    aborted=st.sets(st.integers(0, 8), max_size=3),
)
def test_each_of_a_mix_of_embeddings_and_answers_is_what_it_is_alone(
    requests: list[tuple[list[int], int, Any]],
    overlapped: bool,
    blocks: int,
    max_running: int,
    budget: int,
    caching: bool,
    host_blocks: int,
    arrivals: list[int],
    aborted: set[int],
) -> None:
    backend = LateBackend(blocks, rows=max_running, longest=32) if overlapped else EchoBackend(blocks)
    run = make_runner(
        backend,
        max_model_len=32,
        max_running=max_running,
        budget=budget,
        caching=caching,
        host_blocks=host_blocks,
    )
    for i, (prompt, count, pooling) in enumerate(requests):
        run.submit(str(i), prompt, max_tokens=count, seed=5, pooling=pooling)
        for _ in range(arrivals[i]):
            run.step()
        if i - 1 in aborted:
            run.engine.abort(str(i - 1))
    run.finish()
    for i, (prompt, count, pooling) in enumerate(requests):
        if i in aborted and (str(i), 0) not in run.final:
            continue
        if pooling is None:
            assert run.tokens[str(i), 0] == alone(prompt, count, 5)
        else:
            assert run.embedding(str(i)).tobytes() == embedding_of(prompt, pooling).tobytes()
    report = run.engine.stats()
    assert (report.running, report.waiting, report.blocks_pinned) == (0, 0, 0)
    embeddings = sum(pooling is not None for _, _, pooling in requests)
    assert (report.requests, report.pooled_requests) == (len(requests), embeddings)


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("budget", [1, 3, 4, 12, 64])
def test_a_vector_does_not_depend_on_the_size_of_chunks(runner: Make, pooling: str, budget: int) -> None:
    run = runner(budget=budget, max_running=1)
    run.submit("e", PROMPT, pooling=pooling)
    run.finish()
    assert run.embedding("e").tobytes() == embedding_of(PROMPT, pooling).tobytes()


def test_nothing_is_sampled_for_an_embedding(runner: Make, echo: Make) -> None:
    backend = echo(64)
    run = runner(backend)
    run.submit("e", PROMPT, pooling="mean")
    run.finish()
    assert [len(batch.sample.row) for batch in backend.batches] == [0]
    assert run.final["e", 0].tokens == []
    assert run.engine.stats().generation_tokens == 0
    assert run.engine.stats().prompt_tokens == len(PROMPT)


def test_the_last_state_is_computed_after_a_cached_prefix(runner: Make, echo: Make) -> None:
    run, backend = two_of_the_same(runner, echo, "last")
    assert run.final["second", 0].cached_tokens == 12
    assert len(backend.batches[-1].tokens) == 1


def test_a_mean_is_computed_over_all_tokens_whatever_is_cached(runner: Make, echo: Make) -> None:
    run, backend = two_of_the_same(runner, echo, "mean")
    assert run.final["second", 0].cached_tokens == 0
    assert len(backend.batches[-1].tokens) == len(PROMPT)


def test_an_answer_finds_the_blocks_that_a_mean_has_left(runner: Make) -> None:
    run = runner()
    run.submit("mean", PROMPT, pooling="mean")
    run.finish()
    run.submit("answer", PROMPT)
    run.finish()
    assert run.final["answer", 0].cached_tokens == 12


def two_of_the_same(runner: Make, echo: Make, pooling: str) -> tuple[Runner, EchoBackend]:
    backend = echo(64)
    run = runner(backend)
    for name in ("first", "second"):
        run.submit(name, PROMPT, pooling=pooling)
        run.finish()
        assert run.embedding(name).tobytes() == embedding_of(PROMPT, pooling).tobytes()
    return run, backend


@pytest.mark.parametrize("host_blocks", [0, 64])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_a_preempted_embedding_is_complete(runner: Make, pooling: str, host_blocks: int) -> None:
    run = runner(budget=4, host_blocks=host_blocks, caching=False)
    run.submit("e", list(range(20)), pooling=pooling)
    run.step()
    run.engine.scheduler._preempt(plan := SchedulerOutput(), 0.0)
    swap_out(plan, run.engine.backend, run.engine.scheduler, Failpoints(""))
    run.submit("takes its row", [1, 2, 3], pooling="mean", priority=5)
    run.finish()
    assert run.engine.scheduler.preemptions == 1
    assert run.embedding("e").tobytes() == embedding_of(list(range(20)), pooling).tobytes()


def test_a_prompt_to_embed_may_fill_the_context(runner: Make) -> None:
    run = runner(max_model_len=16)
    run.submit("e", list(range(16)), pooling="last")
    run.finish()
    assert run.embedding("e").tobytes() == embedding_of(list(range(16)), "last").tobytes()


def test_a_longer_prompt_is_refused_with_the_numbers(runner: Make) -> None:
    run = runner(max_model_len=16)
    with pytest.raises(RequestError, match="the prompt has 17 tokens; this model takes 16"):
        run.submit("e", list(range(17)), pooling="last")


def test_a_backend_without_hidden_states_refuses(runner: Make, echo: Make) -> None:
    backend = echo(64)
    backend.hidden_size = 0
    with pytest.raises(RequestError, match="gives no embeddings"):
        runner(backend).submit("e", PROMPT, pooling="last")


def test_a_prompt_has_one_embedding(runner: Make) -> None:
    run = runner()
    with pytest.raises(RequestError, match="n is 2"):
        run.engine.submit(Request(id="e", tokens=PROMPT, sampling=SamplingParams(n=2), pooling="last"))


def test_an_embedding_past_its_deadline_is_an_error(runner: Make) -> None:
    run = runner(budget=1, max_running=1)
    run.submit("e", PROMPT, pooling="mean", timeout=3.0)
    run.finish()
    assert (run.final["e", 0].finish_reason, run.final["e", 0].stop_reason) == ("error", DEADLINE)
    assert run.final["e", 0].embedding is None


def test_a_vector_that_is_not_a_number_ends_its_request_alone(runner: Make, echo: Make) -> None:
    backend = echo(64)
    states = backend._states
    backend._states = lambda batch: np.where(batch.tokens[0] == 7, np.nan, states(batch))
    run = runner(backend, max_running=1)
    run.submit("bad", [7, 1, 2], pooling="mean")
    run.submit("good", [1, 2, 3], pooling="mean")
    run.finish()
    assert run.final["bad", 0].finish_reason == "error"
    assert run.embedding("good").tobytes() == embedding_of([1, 2, 3], "mean").tobytes()
