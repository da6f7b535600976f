"""Random loads with stop ids, arrivals between steps and aborts, and the answers that any schedule must give."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from .echo import Runner, alone

LIMITS = st.fixed_dictionaries(
    {
        "max_running": st.integers(1, 5),
        "budget": st.integers(5, 32),
        "caching": st.booleans(),
        "host_blocks": st.sampled_from([0, 6]),
    }
)
"""Arguments of `make_runner`."""


@dataclass(frozen=True)
class Load:
    """`requests`: (prompt, max_tokens, n, logprobs). After request i: `arrivals[i]` steps, then the aborts of i - 1."""

    requests: list[tuple[list[int], int, int, int | None]]
    arrivals: list[int]
    stops: set[int]
    aborted: set[tuple[int, int]]

    def run(self, run: Runner) -> None:
        """Submit everything, run to the end, and compare answers and counts."""
        for i, (prompt, count, n, logprobs) in enumerate(self.requests):
            stops = tuple(self.stops)
            run.submit(str(i), prompt, max_tokens=count, n=n, seed=5, stop_token_ids=stops, logprobs=logprobs)
            for _ in range(self.arrivals[i]):
                run.step()
            for victim, index in self.aborted:
                if victim == i - 1:
                    run.engine.abort(str(victim), index)
        tokens = run.finish()
        for i, (prompt, count, n, _) in enumerate(self.requests):
            for index in range(n):
                expected = alone(prompt, count, 5, index, run.engine.backend.layout)
                ends = [at for at, token in enumerate(expected, 1) if token in self.stops]
                expected = expected[: ends[0] if ends else count]
                if (i, index) in self.aborted:
                    got = tokens.get((str(i), index), [])
                    assert got == expected[: len(got)]
                else:
                    assert tokens[str(i), index] == expected
        report = run.engine.stats()
        assert (report.running, report.waiting, report.blocks_pinned) == (0, 0, 0)
        assert report.generation_tokens == sum(map(len, tokens.values()))


def loads(most_tokens: int, logprobs: tuple[int | None, ...] = (None,)) -> st.SearchStrategy[Load]:
    """Up to nine requests of at most `most_tokens` tokens, with one of the numbers of log-probabilities each."""
    prompt = st.lists(st.integers(0, 2), min_size=1, max_size=22)
    request = st.tuples(prompt, st.integers(1, most_tokens), st.integers(1, 3), st.sampled_from(logprobs))
    return st.builds(
        Load,
        requests=st.lists(request, min_size=1, max_size=9),
        arrivals=st.lists(st.integers(0, 3), min_size=9, max_size=9),
        stops=st.sets(st.integers(0, 59), max_size=8),
        aborted=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=4),
    )
