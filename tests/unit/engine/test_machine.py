"""Any order of arrivals, aborts, resets, pauses and steps: answers stay what they are alone, and nothing leaks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.tiers import scaled

from octavo_inference.core.request import DEADLINE

from .echo import Runner, alone, make_runner

MAX_LEN = 32
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


class EngineMachine(RuleBasedStateMachine):
    """Few tokens, few blocks: prefixes meet by chance, and the pool is full most of the time."""

    @initialize(
        blocks=st.integers(8, 20),
        max_running=st.integers(1, 6),
        budget=st.integers(6, 40),
        caching=st.booleans(),
        host_blocks=st.sampled_from([0, 0, 3, 40]),
        static_wait=st.sampled_from([None, None, 0.0, 5.0]),
    )
    def make(self, **sizes: object) -> None:
        self.run: Runner = make_runner(max_model_len=MAX_LEN, **sizes)  # type: ignore[arg-type]
        self.asked: dict[str, tuple[list[int], int, int]] = {}
        self.cut: set[tuple[str, int]] = set()

    @rule(
        prompt=PROMPTS,
        count=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from("abc"),
        policy=st.sampled_from(["chat", "api", "batch"]),
        timeout=st.sampled_from([None, None, None, 10.0]),
    )
    def submit(
        self, prompt: list[int], count: int, n: int, priority: int, tenant: str, policy: str, timeout: float | None
    ) -> None:
        name = str(len(self.asked))
        self.asked[name] = prompt, count, n
        self.run.submit(
            name,
            prompt,
            max_tokens=count,
            n=n,
            seed=7,
            priority=priority,
            tenant=tenant,
            cache_policy=policy,
            timeout=timeout,
        )

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), index=st.sampled_from([None, 0, 1, 2]))
    def abort(self, data: st.DataObject, index: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        self.run.engine.abort(name, index)
        self.cut |= {(name, i) for i in range(3) if index is None or i == index}

    @rule(seconds=st.sampled_from([1.0, 30.0, 400.0, 90000.0]))
    def wait(self, seconds: float) -> None:
        self.run.clock.now += seconds

    @rule()
    def reset_cache(self) -> None:
        self.run.engine.reset_cache()

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "run"):
            self.run.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        self.run.finish()
        for name, (prompt, count, n) in self.asked.items():
            for index in range(n):
                expected = alone(prompt, count, 7, index)
                got = self.run.tokens.get((name, index), [])
                final = self.run.final.get((name, index))
                if (name, index) in self.cut or (final is not None and final.stop_reason == DEADLINE):
                    assert got == expected[: len(got)]
                else:
                    assert got == expected
        scheduler = self.run.engine.scheduler
        assert (scheduler.pool.pinned, scheduler.host_free) == (0, scheduler.host_blocks)
        for batch in self.run.engine.backend.batches:  # type: ignore[attr-defined]
            assert len(batch.tokens) <= scheduler.budget
            assert len(batch.seq_len) <= scheduler.max_running


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=scaled(25), stateful_step_count=30)
