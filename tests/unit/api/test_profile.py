"""Profiles of the engine's steps: differences of its sums."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from octavo_inference.engine.ipc import StepTimes
from octavo_inference.engine.output_router import EngineDiedError
from octavo_inference.server.profile import Profile, Profiler
from octavo_protocol.load import StepSums

BEFORE = StepTimes(
    parts={"attention": 1.0, "linears": 2.0},
    steps=StepSums(count=10, seconds=4.0, prefill=100, rows=20, context=3000),
)
AFTER = StepTimes(
    parts={"attention": 1.25, "linears": 2.5},
    steps=StepSums(count=13, seconds=5.0, prefill=164, rows=25, context=4000),
)


@pytest.fixture
def sums() -> list[StepTimes | EngineDiedError]:
    """What the engine answers next."""
    return [BEFORE, AFTER]


@pytest.fixture
def profiling(serve, sums) -> Callable:
    async def read() -> StepTimes:
        found = sums.pop(0)
        if isinstance(found, EngineDiedError):
            raise found
        return found

    def begin(server) -> Profiler:
        server.service.profiler = Profiler(server.service, read)
        return server.service.profiler

    return begin


async def profile(server, **fields: object):
    return await server.admin.post("/v1/octavo/profile", json={"seconds": 0.1} | fields)


async def test_a_profile_counts_the_steps_of_its_interval_alone(serve, profiling):
    async with serve() as server:
        profiling(server)
        found = (await profile(server)).json()
        assert found.pop("seconds") >= 0.1
        assert found == {
            "steps": 3,
            "step_seconds": 1.0,
            "prefill_tokens": 64,
            "decoded_tokens": 5,
            "context_tokens": 1000,
            "part_seconds": {"attention": 0.25, "linears": 0.5},
            "other_seconds": 0.25,
        }


async def test_only_one_profile_runs_at_a_time(serve, profiling):
    async with serve() as server:
        profiler = profiling(server)
        first = asyncio.ensure_future(profiler.profile(0.1))
        await asyncio.sleep(0)
        second = await profile(server)
        assert (second.status_code, second.json()["error"]["code"]) == (409, "busy")
        assert isinstance(await first, Profile)


@pytest.mark.parametrize(("seconds", "param"), [(0, "seconds"), (61, "seconds"), ("5", "seconds"), (True, "seconds")])
async def test_a_wrong_length_is_refused(serve, profiling, seconds, param):
    async with serve() as server:
        profiling(server)
        answer = await profile(server, seconds=seconds)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_what_cannot_be_profiled_is_refused(serve, profiling, sums):
    async with serve() as server:
        assert (await profile(server)).status_code == 503
        profiler = profiling(server)
        server.service.sleeping = True
        answer = await profile(server)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "sleeping")
        server.service.sleeping = False
        running = asyncio.ensure_future(profiler.profile(0.1))
        await asyncio.sleep(0)
        server.service.start_time += 1  # it slept and woke up
        with pytest.raises(Exception, match="slept and woke up"):
            await running
        sums.append(EngineDiedError("out of memory in /srv"))
        answer = await profile(server)
        assert answer.status_code == 503
        assert "/srv" not in answer.text
