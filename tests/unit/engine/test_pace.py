"""How many prompt tokens a step takes beside running answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.gather import Batch
from octavo_inference.core.model_input import StepResult
from octavo_inference.core.prefill_budget import PrefillBudget, PromptRoom, pairs, prompt_seconds
from octavo_inference.core.request import Request, SamplingParams

from .echo import CONFIG, EchoBackend

BUDGET = 512


class Machine(EchoBackend):
    """Steps take 5 ms, 1 ms per decode and 0.5 ms per prompt token: read `seconds` as the clock."""

    def __init__(self) -> None:
        super().__init__(num_blocks=800)
        self.seconds = 0.0
        self.steps: list[tuple[int, int, float]] = []

    def step(self, batch: Batch) -> StepResult:
        sizes = [int(n) for n in batch.query_start[1:] - batch.query_start[:-1]]
        decodes, prefill = sizes.count(1), sum(n for n in sizes if n > 1)
        took = 0.005 + 0.001 * decodes + 0.0005 * prefill
        self.seconds += took
        self.steps.append((decodes, prefill, took))
        return super().step(batch)


def engine_on(machine: Machine, slowdown: float | None) -> Engine:
    limits = EngineLimits(1024, 64, BUDGET, 1000, prefill_slowdown=slowdown)
    return Engine(machine, CONFIG, limits, clock=lambda: machine.seconds)


def submit(engine: Engine, name: str, length: int, answer: int) -> None:
    sampling = SamplingParams(max_tokens=answer, temperature=0.0, seed=1)
    engine.submit(Request(id=name, tokens=[(7 * i + len(name)) % 60 for i in range(length)], sampling=sampling))


def run(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.id, []).extend(output.tokens)
    return tokens


def arrival(slowdown: float | None) -> tuple[Machine, dict[str, list[int]]]:
    """16 answers run, then a long prompt comes."""
    machine = Machine()
    engine = engine_on(machine, slowdown)
    for i in range(16):
        submit(engine, f"answer-{i}", 40, 130)
    first: dict[str, list[int]] = {}
    for _ in range(40):
        for output in engine.step():
            first.setdefault(output.id, []).extend(output.tokens)
    submit(engine, "long", 900, 4)
    for name, tokens in run(engine).items():
        first.setdefault(name, []).extend(tokens)
    return machine, first


@pytest.mark.parametrize("slowdown", [1.3, 1.5, 2.0])
def test_a_long_prompt_makes_running_answers_wait_no_longer_than_allowed(slowdown: float) -> None:
    machine, _ = arrival(slowdown)
    quiet = 0.005 + 16 * 0.001
    disturbed = [took for decodes, prefill, took in machine.steps if decodes == 16 and prefill]
    assert disturbed
    assert max(disturbed) <= quiet * slowdown + 0.0005
    # The allowance is used, not wasted, by all but the prompt's remainder and the half chunks that measure fixed costs.
    assert median(disturbed) > quiet * (1 + 0.7 * (slowdown - 1))


def test_without_a_limit_a_chunk_fills_the_budget() -> None:
    machine, _ = arrival(None)
    assert (16, BUDGET - 16) in [(decodes, prefill) for decodes, prefill, _ in machine.steps]


def test_answers_do_not_depend_on_the_pace() -> None:
    answers = [arrival(slowdown)[1] for slowdown in (None, 1.1, 3.0)]
    assert answers[0] == answers[1] == answers[2]


def test_a_burst_fills_the_engine_about_as_fast_as_without_a_limit() -> None:
    seconds = []
    for slowdown in (None, 1.5):
        machine = Machine()
        engine = engine_on(machine, slowdown)
        submit(engine, "first", 40, 20)  # so that something is measured before the burst comes
        run(engine)
        for i in range(64):
            submit(engine, f"burst-{i}", 150, 40 + i)
        run(engine)
        seconds.append(machine.seconds)
    assert seconds[1] < 1.03 * seconds[0]


def test_nobody_running_means_no_limit() -> None:
    pace = PrefillBudget(1.5)
    pace.observe(0.5, 0, 100)
    pace.observe(0.02, 16, 0)
    assert pace.room(BUDGET, 0, 5).chunk(0) == BUDGET


def test_nothing_measured_means_no_limit() -> None:
    assert PrefillBudget(1.5).room(BUDGET, 16, 1).chunk(0) == BUDGET


def test_a_server_that_starts_under_load_measures_its_decodes() -> None:
    """Prompts arrive all the time, so no step is without them unless one makes them wait."""
    pace = PrefillBudget(1.5)
    chunks = []
    for _ in range(40):
        chunk = pace.room(BUDGET, 16, 1).chunk(0)
        pace.observe(0.01 + 1e-4 * chunk, 16, chunk, pairs(chunk, 0))
        chunks.append(chunk)
    assert chunks[:18] == [BUDGET] * 16 + [0, BUDGET]
    assert max(chunks[18:]) <= 50


def test_one_hiccup_of_the_machine_does_not_stop_a_prompt() -> None:
    pace = PrefillBudget(2.0)
    pace.observe(0.1, 0, 100)
    pace.observe(0.02, 16, 0)
    before = pace.room(BUDGET, 16, 1).chunk(0)
    pace.observe(30.0, 16, 20)
    after = pace.room(BUDGET, 16, 1).chunk(0)
    assert before == 20
    assert after >= 16


def test_a_step_too_short_for_the_clock_is_not_measured() -> None:
    pace = PrefillBudget(1.5)
    pace.observe(0.0, 0, 100)
    pace.observe(0.0, 16, 0)
    assert pace.room(BUDGET, 16, 1).chunk(0) == BUDGET


def steady(
    pace: PrefillBudget,
    extra: Callable[[int], float],
    quiet: float = 0.01,
    steps: int = 100,
    per_pair: float = 0.0,
    contexts: Iterable[int] = itertools.repeat(0),
) -> int:
    """The usual limit after so many steps with as many prompt tokens as allowed next to 16 answers."""
    if not pace.room(BUDGET, 16, 1).seconds < math.inf:
        pace.observe(quiet, 16, 0)
        pace.observe(quiet + extra(100), 16, 100)
    chunks = []
    for context, _ in zip(contexts, range(steps), strict=False):
        chunk = pace.room(BUDGET, 16, 1).chunk(context)
        earlier = pairs(chunk, context)
        pace.observe(quiet + (extra(chunk) if chunk else 0.0) + per_pair * earlier, 16, chunk, earlier)
        chunks.append(chunk)
    return int(median(chunks[-20:]))


def test_without_a_fixed_cost_a_step_takes_what_is_allowed() -> None:
    assert steady(PrefillBudget(1.5), lambda tokens: 1e-4 * tokens) == pytest.approx(50, rel=0.05)


def test_a_fixed_cost_within_the_allowed_wait_leaves_the_rest_to_tokens() -> None:
    assert steady(PrefillBudget(1.5), lambda tokens: 0.002 + 1e-4 * tokens) == pytest.approx(30, rel=0.05)


def test_a_chunk_costs_at_least_as_much_as_the_fixed_cost() -> None:
    assert steady(PrefillBudget(1.5), lambda tokens: 0.020 + 1e-4 * tokens) == pytest.approx(200, rel=0.05)


def test_a_chunk_takes_the_tokens_that_cost_nothing_more() -> None:
    """The first 400 tokens cost as much as one, and above the allowed wait."""
    found = steady(PrefillBudget(1.5), lambda tokens: max(0.020, 5e-5 * tokens))
    assert 300 <= found <= 800


def test_a_slow_first_prompt_is_forgotten() -> None:
    """A first step that compiles or reads pages takes a hundred times longer."""
    pace = PrefillBudget(1.5)
    pace.observe(1.0, 0, 100)
    assert steady(pace, lambda tokens: 1e-4 * tokens, steps=60) == pytest.approx(50, rel=0.2)


def test_a_machine_of_half_the_speed_gets_the_same_chunks() -> None:
    pace = PrefillBudget(1.5)
    before = steady(pace, lambda tokens: 1e-4 * tokens)
    for _ in range(20):
        pace.observe(0.02, 16, 0)
    assert steady(pace, lambda tokens: 2e-4 * tokens, quiet=0.02) == pytest.approx(before, rel=0.1)


def test_one_step_of_17_measures_the_decodes_even_if_it_is_too_short_for_the_clock() -> None:
    pace = PrefillBudget(1.5)
    steady(pace, lambda tokens: 1e-4 * tokens)
    pace.observe(0.0, 16, 0)
    found = []
    for _ in range(34):
        found.append(pace.room(BUDGET, 16, 1).chunk(0))
        pace.observe(0.01 + 1e-4 * found[-1] if found[-1] else 0.0, 16, found[-1])
    assert [number for number, chunk in enumerate(found) if chunk == 0] == [16, 33]


def test_decodes_that_slow_down_during_a_prompt_are_measured() -> None:
    """Their contexts grow with each step, and one step in 17 measures them. The average lags behind them a little."""
    pace = PrefillBudget(1.5)
    quiet = 0.01
    steady(pace, lambda tokens: 1e-4 * tokens, quiet)
    for _ in range(500):
        quiet += 2e-5
        chunk = pace.room(BUDGET, 16, 1).chunk(0)
        pace.observe(quiet + 1e-4 * chunk, 16, chunk, pairs(chunk, 0))
    assert steady(pace, lambda tokens: 1e-4 * tokens, quiet, 20) == pytest.approx(0.5 * quiet / 1e-4, rel=0.2)


def test_a_chunk_deep_in_a_prompt_has_fewer_tokens() -> None:
    """Attention reads all tokens before. At 5,000 of them, a token takes six times as long as the first one."""
    pace = PrefillBudget(1.5)
    prompt = range(0, 6000, 30)
    steady(pace, lambda tokens: 1e-4 * tokens, per_pair=1e-7, steps=len(prompt), contexts=prompt)
    room = pace.room(BUDGET, 16, 1)
    assert room.chunk(5000) == pytest.approx(0.005 / 6e-4, abs=1.5)
    # The next prompt begins with chunks within the allowed time, though the last steps were all deep in this one.
    assert 10 <= room.chunk(0) <= 50


@example(quiet=1.0, fixed=0.0, slowdown=1.5, answers=1, entering=1)
@given(
    quiet=st.floats(1e-4, 10),
    fixed=st.floats(0, 10),
    slowdown=st.floats(1.01, 100),
    answers=st.integers(1, 256),
    entering=st.integers(0, 256),
)
def test_more_prompts_get_more_time_and_at_least_their_fixed_time(
    quiet: float, fixed: float, slowdown: float, answers: int, entering: int
) -> None:
    seconds: Callable[[int, int], float] = lambda a, e: prompt_seconds(quiet, fixed, slowdown, a, e)  # noqa: E731
    assert seconds(answers, entering) >= fixed
    assert seconds(answers, entering + 1) >= seconds(answers, entering)
    assert seconds(answers + 1, entering) <= seconds(answers, entering)


@example(tokens=8, seconds=1.0, per_token=5e-324, per_pair=0.0, contexts=[0])
@given(
    tokens=st.integers(1, 10_000),
    seconds=st.floats(0, 10),
    per_token=st.floats(0, 1),
    per_pair=st.floats(0, 1e-3),
    contexts=st.lists(st.integers(0, 100_000), min_size=1, max_size=5),
)
def test_chunks_use_the_time_and_a_prompt_always_gets_on(
    tokens: int, seconds: float, per_token: float, per_pair: float, contexts: list[int]
) -> None:
    room = PromptRoom(tokens, seconds, per_token, per_pair)
    took = 0.0
    cost: Callable[[int, int], float] = lambda n, c: per_token * n + per_pair * (pairs(n, c) + n / 2)  # noqa: E731
    for number, context in enumerate(contexts):
        chunk, left = room.chunk(context), seconds - took
        assert 0 <= chunk <= room.tokens
        assert chunk >= 1 or number or not room.tokens
        assert chunk <= 1 or cost(chunk, context) <= left * (1 + 1e-9) + 1e-9
        assert chunk == room.tokens or cost(chunk + 1, context) >= left * (1 - 1e-9) - 1e-9
        room.take(chunk, context)
        took += per_token * chunk + per_pair * pairs(chunk, context)
