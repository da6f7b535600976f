"""One pod against timelines computed by hand, and against itself step by step."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import TraceRequest

PLAIN = PodProfile(
    "plain",
    base=0.010,
    prefill=0.001,
    row=0.002,
    context=0.0001,
    pool_tokens=1000,
    noise=0.0,
    block_size=10,
    max_running=8,
    budget=100,
)


def job(number: int, prompt: int, output: int, at: float = 0.0, **more: int | bool) -> SimulatedRequest:
    return SimulatedRequest(number, TraceRequest(at, prompt, output, **more), at)  # type: ignore[arg-type]


def play(profile: PodProfile, jobs: list[SimulatedRequest], longest_jump: int = 64) -> SimulatedPod:
    """Submit each job when it arrives, then run to the end."""
    pod = SimulatedPod(profile, 0.0, seed=3, longest_jump=longest_jump)
    for one in sorted(jobs, key=lambda j: j.arrived):
        pod.advance(one.arrived)
        if not pod.submit(one, one.arrived):
            one.outcome = "rejected"
        pod.check()
    while pod.until < inf:
        pod.advance(pod.until)
        pod.check()
    return pod


def test_one_request() -> None:
    """20 prompt tokens: 10 + 20 ms. Then three decodes that attend to 21, 22 and 23 tokens."""
    one = job(0, 20, 4)
    pod = play(PLAIN, [one])
    assert one.first == pytest.approx(0.030)
    assert one.ended == pytest.approx(0.030 + 3 * 0.012 + 0.0001 * (21 + 22 + 23))
    assert (one.outcome, pod.idle, pod.chains.pinned) == ("finished", True, 0)


def test_a_long_prompt_is_cut_into_chunks() -> None:
    one = job(0, 250, 1)
    play(PLAIN, [one])
    assert one.first == one.ended == pytest.approx(3 * 0.010 + 0.250)


def test_attention_costs_by_what_lies_before() -> None:
    """Chunks of 100 and 50: tokens have 0..99 and 100..149 before them, 11,175 in all."""
    one = job(0, 150, 1)
    play(PodProfile(**{**_fields(PLAIN), "attention": 1e-6}), [one])
    assert one.ended == pytest.approx(0.020 + 0.150 + 1e-6 * sum(range(150)))


def test_two_requests_share_steps() -> None:
    """The second comes while the first one's second decode is computed, and enters with the third step after."""
    first, second = job(0, 20, 4), job(1, 10, 2, at=0.045)
    play(PLAIN, [first, second])
    a = 0.030  # first token of the first
    b = a + 0.012 + 0.0021
    c = b + 0.012 + 0.0022  # 58.3 ms: the step that was being computed at 45 ms ends
    assert b < 0.045 < c
    d = c + 0.010 + 0.010 + 0.002 + 0.0023  # the second one's prompt beside the first one's last decode
    assert first.ended == pytest.approx(d)
    assert second.first == pytest.approx(d)
    assert second.ended == pytest.approx(d + 0.012 + 0.0011)


def test_a_prefix_is_computed_once() -> None:
    """60 of 80 tokens are shared: six blocks are found, 20 tokens are left."""
    first, second = job(0, 80, 1, prefix=7, shared=60), job(1, 80, 1, at=1.0, prefix=7, shared=60)
    pod = play(PLAIN, [first, second])
    assert (first.hit, second.hit) == (0, 60)
    assert first.ended == pytest.approx(0.090)
    assert second.ended == pytest.approx(1.0 + 0.030)
    assert pod.hit_tokens == 60


def test_a_conversation_finds_its_answers_too() -> None:
    """80 + 20 tokens, of which the last one has no KV: nine blocks are found by the next turn."""
    first = job(0, 80, 20, prefix=7, shared=80, turn=True)
    second = job(1, 130, 1, at=5.0, prefix=7, shared=130, turn=True)
    play(PLAIN, [first, second])
    assert second.hit == 90


def test_the_newest_is_preempted_and_computed_again() -> None:
    """Ten blocks. Both have five when the first one's token at position 50 needs a sixth: the second one goes."""
    small = PodProfile(**{**_fields(PLAIN), "pool_tokens": 100})
    first, second = job(0, 35, 30), job(1, 33, 20)
    pod = play(small, [first, second])
    begun = 0.010 + 0.035  # the step that began when the first came
    both = begun + 0.010 + 0.033 + 0.002 + 0.0036  # the second one's prompt beside a decode
    together = sum(0.010 + 0.004 + 0.0001 * (37 + i + 34 + i) for i in range(14))  # positions 36..49 of the first
    alone = sum(0.010 + 0.002 + 0.0001 * (51 + i) for i in range(14))
    assert pod.preemptions == 1
    assert second.first == pytest.approx(both)
    assert first.ended == pytest.approx(both + together + alone)
    # The second had 15 answer tokens, 48 in all; five blocks and one to grow are not there before the first has ended.
    again = 0.010 + 0.048 + sum(0.012 + 0.0001 * (49 + i) for i in range(4))
    assert second.ended == pytest.approx(first.ended + again)
    assert pod.recomputed == 47


def test_one_that_could_never_fit_is_refused() -> None:
    pod = SimulatedPod(PLAIN, 0.0)
    assert not pod.submit(job(0, 990, 11), 0.0)
    assert pod.submit(job(1, 990, 10), 0.0)


def test_rows_are_a_limit() -> None:
    one_row = PodProfile(**{**_fields(PLAIN), "max_running": 1})
    first, second = job(0, 20, 2), job(1, 20, 1)
    play(one_row, [first, second])
    assert second.first == pytest.approx(first.ended + 0.030)


@pytest.mark.parametrize(("floor", "first"), [(0.0, 0.130 + 0.080), (0.12, 0.130 + 0.120)])
def test_steps_with_prompts_have_a_base_and_a_floor_of_their_own(floor: float, first: float) -> None:
    """Chunks of 100 and 50 tokens take 130 and 80 ms by their base; decodes take 12 ms."""
    one = job(0, 150, 3)
    play(replace(PLAIN, mixed_base=0.030, mixed_floor=floor), [one])
    assert one.first == pytest.approx(first)
    assert one.ended == pytest.approx(first + 2 * 0.012 + 0.0001 * (151 + 152))


def test_a_smaller_base_and_floor_of_steps_with_prompts_change_nothing() -> None:
    floored = replace(PLAIN, floor=0.05)
    same = replace(floored, mixed_base=PLAIN.base, mixed_floor=0.05)
    for rows, prompt in ((0, 0), (8, 0), (0, 1), (8, 1), (8, 90)):
        assert same.linear(rows, prompt) == floored.linear(rows, prompt)
        assert floored.linear(rows, prompt) == max(0.05, PLAIN.linear(rows, prompt))


def test_a_fixed_cost_of_prompts_does_not_shrink_chunks() -> None:
    """A mixed step costs 40 ms more than a decode, however few tokens it has. So a chunk has 40 tokens or more."""
    slow = replace(PLAIN, pool_tokens=20_000, context=0.0, mixed_base=0.050, slowdown=1.5)
    answers = [job(n, 20, 3000) for n in range(6)]
    prompts = [job(10 + n, 400, 1, at=3.0 * (n + 1)) for n in range(8)]
    play(slow, answers + prompts)
    steps = 400 / 40 + 2  # one of them with half the tokens, and one that runs when the prompt comes
    assert prompts[-1].first - prompts[-1].arrived <= steps * (0.050 + 0.012 + 0.040)


def test_a_client_that_has_gone_costs_nothing() -> None:
    one_row = PodProfile(**{**_fields(PLAIN), "max_running": 1})
    first, second = job(0, 20, 40), job(1, 20, 1, at=0.1)
    second.deadline = 0.2
    pod = play(one_row, [first, second])
    assert second.outcome == "timeout"
    assert pod.prompt_tokens == 20


def test_a_prompt_that_pauses_waits_for_one_step_only() -> None:
    """A step in 17 measures the decodes alone."""
    profile = replace(PLAIN, pool_tokens=9000, budget=20, slowdown=1.5)
    found = []
    for longest in (1, 64):
        jobs = [job(0, 10, 2000), job(1, 800, 2, at=1.0), job(2, 800, 2, at=1.0)]
        play(profile, jobs, longest)
        found.append([one.first for one in jobs])
    assert found[1] == pytest.approx(found[0])


def test_slowdown_bounds_a_step_beside_answers() -> None:
    """16 answers per entering prompt: a step takes 1.5 times a quiet one. One answer: room for 16 times more."""
    paced = PodProfile(**{**_fields(PLAIN), "slowdown": 1.5, "budget": 1000})
    first, second = job(0, 20, 10), job(1, 400, 1, at=0.031)
    play(paced, [first, second])
    quiet = 0.012 + 0.0001 * 22
    tokens = int(quiet * 0.5 * 16 / 0.001)
    assert tokens < 400
    begun = 0.030 + 0.012 + 0.0021
    assert second.first > begun + 0.010 + 0.001 * 400 + 0.010


tokens = st.integers(1, 120)
loads = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False),
        tokens,
        st.integers(1, 90),
        st.integers(-1, 2),
        st.integers(0, 120),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@given(loads, st.sampled_from([120, 200, 1000]), st.sampled_from([0.0, 0.05]))
@settings(max_examples=scaled(30))
def test_jumps_equal_single_steps(load: list[tuple[float, int, int, int, int, bool]], pool: int, noise: float) -> None:
    """Also: the books are right after every event, and every request ends exactly once."""
    profile = PodProfile(**{**_fields(PLAIN), "pool_tokens": pool, "noise": noise})
    runs = []
    for longest in (64, 1):
        jobs = [
            SimulatedRequest(n, TraceRequest(at, p, o, prefix, min(shared, p), turn and prefix >= 0), at, at + 2.0)
            for n, (at, p, o, prefix, shared, turn) in enumerate(load)
        ]
        pod = play(profile, jobs, longest)
        assert pod.chains.pinned == 0
        assert all(one.outcome in {"finished", "rejected", "timeout"} for one in jobs)
        finished = [one for one in jobs if one.outcome == "finished"]
        assert pod.generation_tokens == sum(one.request.output for one in finished)
        report = pod.report(1e6)
        assert (report.running, report.waiting, report.waiting_tokens, report.uncached_prompt_tokens) == (0, 0, 0, 0)
        runs.append((jobs, pod))
    (jumped, pod), (stepped, single) = runs
    assert [one.outcome for one in jumped] == [one.outcome for one in stepped]
    assert [one.first for one in jumped] == pytest.approx([one.first for one in stepped])
    assert [one.ended for one in jumped] == pytest.approx([one.ended for one in stepped])
    assert (pod.preemptions, pod.hit_tokens) == (single.preemptions, single.hit_tokens)
    ours, theirs = pod.sums.steps(), single.sums.steps()
    for name in ours.__struct_fields__:
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name


def _fields(profile: PodProfile) -> dict[str, object]:
    return {name: getattr(profile, name) for name in profile.__slots__}
