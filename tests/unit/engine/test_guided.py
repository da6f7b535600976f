"""Requests with guidance in the engine: each answer is the one that its grammar gives alone, in any batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.support.waiting import eventually

from octavo_inference.common.errors import RequestError
from octavo_inference.core.request import REFUSED, Guidance, Output, Request
from octavo_inference.engine.loop import EngineLoop

from .echo import EOS, VOCAB, EchoBackend, Runner, alone, make_runner
from .fake_grammar import Compiler, expected, grammar
from .late import LateBackend


def make(*, late: bool = False, compiler: Compiler | None = None, **given: Any) -> Runner:
    compile_grammar = compiler or Compiler()
    backend = LateBackend(given.pop("blocks", 64)) if late else EchoBackend(given.pop("blocks", 64))
    return make_runner(backend, load_vocabulary=lambda: compile_grammar, **given)


GUIDANCE = st.one_of(
    st.none(),
    st.builds(
        lambda seed, length, after, budget: Guidance(
            grammar=grammar(seed, length) if length else "",
            after=after,
            thinking_budget=budget if after and (budget is not None or length) else None,
        ),
        st.integers(0, 9),
        st.integers(0, 12),
        st.lists(st.integers(0, 59), max_size=3).map(tuple),
        st.none() | st.integers(0, 6),
    ),
)
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=20),
        st.integers(1, 12),
        st.integers(1, 3),
        GUIDANCE,
        st.sampled_from([(), tuple(range(0, 60, 2))]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=scaled(80), deadline=None)
@given(
    late=st.booleans(),
    requests=REQUESTS,
    blocks=st.integers(10, 24),
    max_running=st.integers(1, 5),
    budget=st.integers(5, 32),
    caching=st.booleans(),
    chunked=st.booleans(),
    static_wait=st.sampled_from([None, 2.0]),
    host_blocks=st.sampled_from([0, 6]),
    arrivals=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    stops=st.sets(st.integers(0, 59), max_size=6),
)
def test_answers_follow_their_grammars_and_nothing_else_changes(
    late: bool,
    requests: list[tuple[list[int], int, int, Guidance | None, tuple[int, ...]]],
    blocks: int,
    max_running: int,
    budget: int,
    caching: bool,
    chunked: bool,
    static_wait: float | None,
    host_blocks: int,
    arrivals: list[int],
    stops: set[int],
) -> None:
    run = make(
        late=late,
        blocks=blocks,
        max_model_len=36,
        max_running=max_running,
        budget=budget if chunked else 36,
        caching=caching,
        chunked=chunked,
        static_wait=static_wait,
        host_blocks=host_blocks,
    )
    for i, (prompt, count, n, guidance, allowed) in enumerate(requests):
        run.submit(
            str(i),
            prompt,
            max_tokens=count,
            n=n,
            seed=5,
            stop_token_ids=tuple(stops),
            guidance=guidance,
            allowed_token_ids=allowed,
        )
        for _ in range(arrivals[i]):
            run.engine.wait()
            run.step()
    tokens = run.finish()
    total = 0
    for i, (prompt, count, n, guidance, allowed) in enumerate(requests):
        for index in range(n):
            wanted, reason = expected(
                prompt, guidance, count=count, seed=5, index=index, stops=frozenset(stops), allowed=allowed
            )
            assert tokens[str(i), index] == wanted
            assert run.final[str(i), index].finish_reason == reason
            total += len(wanted)
    assert run.engine.counters.generation_tokens == total


def test_forced_tokens_are_appended_without_a_sample_of_their_own() -> None:
    marker = tuple(range(10, 22))
    run, ahead = make(), make(late=True)
    for each in (run, ahead):
        each.submit(
            "a", [1, 2], max_tokens=30, guidance=Guidance(after=marker, thinking_budget=1, grammar=grammar(1, 5))
        )
        each.finish()
    assert run.tokens == ahead.tokens
    assert run.tokens["a", 0][1:13] == list(marker)
    assert run.engine.counters.guidance.forced_tokens >= 11
    assert run.engine.heartbeat <= ahead.engine.heartbeat - 11
    assert ahead.engine.counters.guidance.forced_tokens == 0
    assert run.engine.counters.guidance.budgets_reached == ahead.engine.counters.guidance.budgets_reached == 1


@pytest.mark.parametrize("given", [{"logprobs": 1}, {"logit_bias": {3: 1.0}}], ids=["logprobs", "rules"])
def test_requests_whose_samples_matter_do_not_jump(given: dict[str, Any]) -> None:
    run = make()
    run.submit("a", [1], max_tokens=12, guidance=Guidance(after=(5, 6, 7, 8), thinking_budget=0), **given)
    run.finish()
    assert run.tokens["a", 0][:4] == [5, 6, 7, 8]
    assert run.engine.counters.guidance.forced_tokens == 0


def test_forced_tokens_end_at_max_tokens() -> None:
    run = make()
    run.submit("a", [1], max_tokens=3, guidance=Guidance(after=(5, 6, 7, 8), thinking_budget=0))
    run.finish()
    assert run.tokens["a", 0] == [5, 6, 7]
    assert run.final["a", 0].finish_reason == "length"


def test_a_grammar_ends_an_answer_before_min_tokens_and_with_ignore_eos() -> None:
    run = make()
    run.submit("a", [1], max_tokens=12, min_tokens=12, ignore_eos=True, guidance=Guidance(grammar=grammar(2, 4)))
    run.finish()
    assert len(run.tokens["a", 0]) == 4
    assert EOS not in run.tokens["a", 0]
    assert (run.final["a", 0].finish_reason, run.final["a", 0].tokens) == ("stop", [])


def test_what_is_left_of_a_grammar_and_allowed_ids_may_be_nothing() -> None:
    run = make()
    run.submit("a", [1], guidance=Guidance(after=(5,), thinking_budget=0), allowed_token_ids=[6])
    run.finish()
    assert run.tokens["a", 0] == []
    assert run.final["a", 0].finish_reason == "stop"


@pytest.mark.parametrize("late", [False, True])
def test_an_error_of_a_mask_ends_its_request_alone(late: bool) -> None:
    run = make(late=late)
    run.submit("bad", [1, 2], n=2, guidance=Guidance(grammar=grammar(1, 9, breaks_at=2)))
    run.submit("good", [1, 2], guidance=Guidance(grammar=grammar(1, 9)))
    run.submit("free", [1, 2])
    run.finish()
    for index in range(2):
        final = run.final["bad", index]
        assert (final.finish_reason, final.stop_reason, final.error) == ("error", REFUSED, "grammar: too complex")
    assert run.tokens["good", 0] == expected([1, 2], Guidance(grammar=grammar(1, 9)), count=8, seed=1)[0]
    assert run.tokens["free", 0] == alone([1, 2], 8, 1)


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    run = make()
    run.submit("bad", [1], n=2, guidance=Guidance(grammar="?"))
    run.submit("good", [1])
    run.finish()
    for index in range(2):
        final = run.final["bad", index]
        assert (final.finish_reason, final.error) == ("error", "grammar: no grammar of the tests")
    assert run.tokens["good", 0] == alone([1], 8, 1)


def test_others_run_while_a_grammar_compiles() -> None:
    compiler = Compiler()
    compiler.gate.clear()
    run = make(compiler=compiler)
    run.submit("guided", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.submit("free", [1])
    while ("free", 0) not in run.final:
        assert run.engine.delay() == 0
        run.step()
    assert run.engine.stats().waiting == 1
    assert run.engine.has_work
    assert 0 < run.engine.delay() <= 1, "an engine that is silent for long is taken for a hang"
    compiler.gate.set()
    run.finish()
    assert run.tokens["guided", 0] == expected([1], Guidance(grammar=grammar(1, 3)), count=8, seed=1)[0]
    assert not run.engine.has_work
    assert run.engine.stats().waiting == 0


def test_requests_end_while_their_grammar_compiles() -> None:
    compiler = Compiler()
    compiler.gate.clear()
    run = make(compiler=compiler)
    run.submit("aborted", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.submit("leader aborted", [1], n=3, guidance=Guidance(grammar=grammar(1, 3)))
    run.submit("late", [1], timeout=5.0, guidance=Guidance(grammar=grammar(1, 3)))
    run.engine.abort("aborted")
    run.engine.abort("leader aborted", 0)
    run.engine.reset_cache()
    run.clock.now += 10
    run.step()
    assert run.final["late", 0].finish_reason == "error"
    compiler.gate.set()
    run.finish()
    assert {key for key in run.tokens if key[0] == "leader aborted"} == {("leader aborted", 1), ("leader aborted", 2)}
    assert not run.engine.has_work


def test_a_grammar_is_compiled_once() -> None:
    compiler = Compiler()
    run = make(compiler=compiler)
    for name in ("a", "b"):
        run.submit(name, [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.finish()
    run.submit("c", [1], guidance=Guidance(grammar=grammar(1, 3)))
    assert run.engine.delay() == 0
    run.finish()
    assert compiler.texts == [grammar(1, 3)]
    assert run.engine.grammar_compiler is not None
    assert run.engine.grammar_compiler.compiled == 1


def test_the_loop_is_woken_when_a_grammar_is_compiled() -> None:
    compiler = Compiler()
    compiler.gate.clear()
    run = make(compiler=compiler)
    assert run.engine.grammar_compiler is not None
    woken: list[bool] = []
    run.engine.grammar_compiler.on_ready = lambda: woken.append(True)
    loop = EngineLoop(run.engine)
    loop.run_once([Request(id="a", tokens=[1], guidance=Guidance(grammar=grammar(1, 3)))])
    assert loop.poll_timeout() != 0
    compiler.gate.set()
    run.engine.wait()
    while not woken:
        pass
    assert loop.poll_timeout() == 0
    outputs: list[Output] = []
    while loop.poll_timeout() == 0:
        outputs += loop.run_once([]).outputs
    assert outputs[-1].finish_reason == "stop"


class Loader:
    """Counts its calls; the first ones fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls = 0
        self.compiler = Compiler()

    def __call__(self) -> Compiler:
        self.calls += 1
        if self.calls <= self.failures:
            raise RuntimeError("no memory")
        return self.compiler


def idle_until_loaded(run: Runner, loader: Loader) -> list[float | None]:
    """What idle calls returned, with the waits that they asked for, until the vocabulary is loaded."""
    waits: list[float | None] = []
    while not waits or waits[-1] is not None:
        waits.append(run.engine.on_idle())
        run.clock.now += waits[-1] or 0
    eventually(lambda: loader.calls == 1)
    return waits


def test_the_vocabulary_is_loaded_once_the_engine_is_idle_for_a_while() -> None:
    loader = Loader()
    run = make_runner(load_vocabulary=loader, pace=0.0)
    assert run.engine.on_idle() is None, "a start-up waits for the first step"
    run.submit("a", [1], max_tokens=2)
    run.finish()
    run.clock.now += 0.25
    assert run.engine.on_idle() == 0.75
    run.submit("b", [1], max_tokens=2)
    run.finish()
    assert idle_until_loaded(run, loader) == [1.0, None]
    assert run.engine.on_idle() is None
    run.submit("c", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.finish()
    assert loader.calls == 1
    assert run.tokens["c", 0] == expected([1], Guidance(grammar=grammar(1, 3)), count=8, seed=1)[0]


def test_the_backend_prepares_before_the_grammars_do() -> None:
    loader = Loader()
    run = make_runner(LateBackend(64), load_vocabulary=loader, pace=0.0)
    run.submit("a", [1], max_tokens=1)
    run.finish()
    assert idle_until_loaded(run, loader) == [0.0, 0.0, 1.0, None]


def test_a_grammar_before_the_first_idle_moment_loads_the_vocabulary() -> None:
    loader = Loader()
    run = make_runner(load_vocabulary=loader, pace=0.0)
    run.submit("a", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.finish()
    run.clock.now += 9
    assert run.engine.on_idle() is None
    assert loader.calls == 1


def test_a_vocabulary_that_cannot_be_prepared_is_loaded_for_the_next_grammar() -> None:
    loader = Loader(failures=1)
    run = make_runner(load_vocabulary=loader, pace=0.0)
    run.submit("a", [1], max_tokens=1)
    run.finish()
    idle_until_loaded(run, loader)
    run.submit("b", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.finish()
    assert loader.calls == 2
    assert run.final["b", 0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("guidance", "message"),
    [
        (Guidance(grammar="x", after=(VOCAB,)), "after: token id is 61, it must be from 0 to 60"),
        (Guidance(after=(1,), thinking_budget=-1), "thinking_budget is -1"),
        (Guidance(thinking_budget=4), "thinking_budget is 4 without `after`"),
    ],
)
def test_guidance_that_cannot_be_followed_is_refused(guidance: Guidance, message: str) -> None:
    run = make()
    with pytest.raises(RequestError, match=message):
        run.submit("a", [1], guidance=guidance)
    assert not run.engine.has_work


def test_an_engine_without_a_compiler_refuses_grammars() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        make_runner().submit("a", [1], guidance=Guidance(grammar="x"))


def test_a_step_that_fails_ends_the_requests_in_it() -> None:
    class Broken(EchoBackend):
        def step(self, batch: Any) -> Any:
            if any(each is not None for each in batch.sample.adjust):
                raise RuntimeError("broken")
            return super().step(batch)

    compiler = Compiler()
    run = make_runner(Broken(64), load_vocabulary=lambda: compiler)
    run.submit("a", [1], guidance=Guidance(grammar=grammar(1, 3)))
    run.finish()
    run.submit("b", [1])
    run.finish()
    assert run.final["a", 0].finish_reason == "error"
    assert run.tokens["b", 0] == alone([1], 8, 1)
