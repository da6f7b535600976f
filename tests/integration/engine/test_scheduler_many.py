"""Ten thousand mixed requests through small pools: every answer is what the request gives alone, to the last token.

The backend's KV of a token is the token, and its next token is a hash of all it reads through the block table, so KV
shared wrongly, overwritten, lost on the way to the host or copied too late changes an answer.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from octavo_common.fair_queue import AGING_SECONDS
from octavo_inference.backends.reference.backend import ReferenceBackend

from ...unit.engine.echo import Runner, alone, embedding_of, make_runner, tiny_model  # noqa: TID252 -- tests are no package

pytestmark = pytest.mark.timeout(900)

SETTINGS = [
    {},
    {"host_blocks": 400},
    {"host_blocks": 12},
    {"chunked": False, "budget": 64},
    {"caching": False},
    {"caching": False, "host_blocks": 400},
    {"static_wait": 0.0, "host_blocks": 400},
    {"max_running": 2, "budget": 5, "blocks": 20},
    {"max_running": 32, "budget": 200, "blocks": 400},
    {"budget": 10, "host_blocks": 30, "blocks": 24},
]
EACH = 1000


def mixed(rng: random.Random, count: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts that begin alike in a few ways, and everything a request can ask for."""
    beginnings = [[rng.randrange(60) for _ in range(length)] for length in (4, 9, 16, 22, 30)]
    requests = []
    for _ in range(count):
        prompt = rng.choice([[], *beginnings]) + [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        asked = {
            "max_tokens": rng.choice([1, 2, 5, 9, 20]),
            "n": rng.choice([1, 1, 1, 1, 2, 3]),
            "seed": rng.randrange(4),
            "priority": rng.choice([0, 0, 0, 1, 3]),
            "tenant": rng.choice("aaaab"),
            "cache_policy": rng.choice(["chat", "api", "batch"]),
            "salt": rng.choice(["", "", "x"]),
        }
        requests.append((prompt, asked))
    return requests


def serve(run: Runner, rng: random.Random, requests: list[tuple[list[int], dict[str, Any]]]) -> set[str]:
    """Submit them as they come, with aborts, resets and hours between; the names of those aborted."""
    aborted = set()
    for i, (prompt, asked) in enumerate(requests):
        run.submit(str(i), prompt, **asked)
        for _ in range(rng.choice([0, 0, 1, 2, 4])):
            run.step()
        if rng.random() < 0.03:
            name = str(rng.randrange(max(0, i - 20), i + 1))
            run.engine.abort(name)
            aborted.add(name)
        if rng.random() < 0.003:
            run.engine.reset_cache()
        if rng.random() < 0.01:
            run.clock.now += rng.choice([100, 400, 4000])
    run.finish(100_000)
    return aborted


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda i: str(SETTINGS[i]) or "defaults")
def test_any_mix_is_solo(number: int) -> None:
    rng = random.Random(number)
    given = {"blocks": 40, "max_model_len": 64, "max_running": 8, "budget": 24, "max_queued": 10**6} | SETTINGS[number]
    run = make_runner(**given, pace=0.01)
    requests = mixed(rng, EACH)
    aborted = serve(run, rng, requests)
    for i, (prompt, asked) in enumerate(requests):
        for index in range(asked["n"]):
            got, expected = (
                run.tokens.get((str(i), index), []),
                alone(prompt, asked["max_tokens"], asked["seed"], index),
            )
            assert got == (expected[: len(got)] if str(i) in aborted else expected)
    scheduler = run.engine.scheduler
    assert (scheduler.pool.pinned, scheduler.host_free) == (0, scheduler.host_blocks)
    # The mix has in it what it is there for.
    if "static_wait" not in given and given["blocks"] <= 40:
        assert scheduler.preemptions > 10
    if given.get("host_blocks", 0) >= 400 and "static_wait" not in given:
        assert scheduler.swaps == scheduler.preemptions
    assert (scheduler.hit_tokens > 1000) == given.get("caching", True)


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda i: str(SETTINGS[i]) or "defaults")
def test_any_mix_with_embeddings_is_solo(number: int) -> None:
    rng = random.Random(number)
    given = {"blocks": 40, "max_model_len": 64, "max_running": 8, "budget": 24, "max_queued": 10**6} | SETTINGS[number]
    run = make_runner(**given, pace=0.01)
    requests = [
        (prompt, asked | ({"pooling": pooling, "n": 1} if (pooling := rng.choice([None, "mean", "last"])) else {}))
        for prompt, asked in mixed(rng, EACH // 2)
    ]
    aborted = serve(run, rng, requests)
    for i, (prompt, asked) in enumerate(requests):
        if "pooling" in asked:
            if str(i) not in aborted or (str(i), 0) in run.final:
                assert run.embedding(str(i)).tobytes() == embedding_of(prompt, asked["pooling"]).tobytes()
            continue
        for index in range(asked["n"]):
            got = run.tokens.get((str(i), index), [])
            expected = alone(prompt, asked["max_tokens"], asked["seed"], index)
            assert got == (expected[: len(got)] if str(i) in aborted else expected)
    scheduler = run.engine.scheduler
    assert (scheduler.pool.pinned, scheduler.host_free) == (0, scheduler.host_blocks)


def test_nobody_starves_in_a_mix_that_never_ends() -> None:
    rng = random.Random(1)
    run = make_runner(blocks=30, max_model_len=64, max_running=4, budget=16, max_queued=10**6, pace=0.5)
    arrived: dict[str, float] = {}
    waits: dict[int, list[float]] = {-3: [], 3: []}

    def step() -> None:
        for output in run.step():
            if output.finish_reason is not None:
                name = output.id
                waits[priority_of(name)].append(run.clock.now - arrived[name])

    def priority_of(name: str) -> int:
        return 3 if int(name) % 3 else -3

    for i, (prompt, asked) in enumerate(mixed(rng, 1500)):
        arrived[str(i)] = run.clock.now
        run.submit(str(i), prompt[:20], **asked | {"max_tokens": 3, "n": 1, "priority": priority_of(str(i))})
        # More than can be served: before long so many wait that the first of them have aged by the difference.
        if i % 3 == 0 or len(run.engine.scheduler.queue) > 200:
            step()
    while run.engine.has_work:
        step()
    assert len(waits[-3]) == 500
    assert statistics.median(waits[3]) + 5 * AGING_SECONDS < statistics.median(waits[-3])
    # Six levels are worth six times ten seconds: nobody waits longer than the others by more.
    assert max(waits[-3]) < max(waits[3]) + 6 * AGING_SECONDS + 20


def test_a_real_model_on_the_reference_is_exact() -> None:
    config, weights = tiny_model()
    rng = random.Random(3)
    requests = mixed(rng, 24)

    def run(**changes: Any) -> Runner:
        given = {"max_model_len": 64, "max_running": 6, "budget": 16, "blocks": 32} | changes
        backend = ReferenceBackend(config, weights, num_blocks=given["blocks"], block_size=4, max_model_len=64)
        return make_runner(backend, **{k: v for k, v in given.items() if k != "blocks"}, max_queued=10**6)

    lonely = run(max_running=1, budget=64, caching=False, blocks=64)
    for i, (prompt, asked) in enumerate(requests):
        lonely.submit(str(i), prompt, **asked | {"temperature": 0.0, "n": 1})
    expected = lonely.finish(100_000)
    for changes in ({}, {"host_blocks": 100}, {"caching": False, "budget": 9}):
        mix = run(**changes)
        for i, (prompt, asked) in enumerate(requests):
            mix.submit(str(i), prompt, **asked | {"temperature": 0.0, "n": 1})
            mix.step()
        assert mix.finish(100_000) == expected
        assert mix.engine.scheduler.preemptions > 0
