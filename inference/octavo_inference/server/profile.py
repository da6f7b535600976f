"""Profile: how long the engine's steps take, and which part of the model takes the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.engine.ipc import StepTimes
from octavo_inference.engine.output_router import EngineDiedError
from octavo_inference.server import errors, json_body
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import ApiError, not_ready
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.service import Service
from octavo_protocol import names

MAX_SECONDS = 60.0


class ProfileRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How long to profile."""

    seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = 5.0
    """Length of the profile. Defaults to 5."""


class Profile(msgspec.Struct, frozen=True):
    """The engine's steps of an interval."""

    seconds: float
    """Length of the interval."""
    steps: int
    """Number of steps that ended in it."""
    step_seconds: float
    """Time of these steps. The engine was idle for the rest of the interval."""
    prefill_tokens: int
    """Prompt tokens computed."""
    decoded_tokens: int
    """Tokens computed for running answers, one per sequence and step."""
    context_tokens: int
    """Tokens in the KV cache that the decoded tokens attended to."""
    part_seconds: dict[str, float]
    """Step time by part of the model. Empty on a backend that does not measure parts: all but the CPU backend."""
    other_seconds: float
    """Step time outside these parts, such as scheduling."""


class Profiler:
    """Profiles the engine of a server; one profile at a time. `read` returns the sums over all steps so far."""

    def __init__(self, service: Service, read: Callable[[], Awaitable[StepTimes]]) -> None:
        self._service = service
        self._read = read
        self._running = asyncio.Lock()

    async def profile(self, seconds: float) -> Profile:
        """Profile the steps of the next `seconds`.

        Raises `ApiError`: 409 while another profile runs, or if the model was loaded again meanwhile; 503 while it is
        not loaded, or if the engine ends.
        """
        if self._running.locked():
            raise ApiError(409, "Another profile is running; wait until it ends.", code="busy")
        async with self._running:
            loaded, begin = self._service.start_time, time.monotonic()
            before = await self._sums()
            await asyncio.sleep(seconds)
            after = await self._sums()
            if self._service.start_time != loaded:
                raise ApiError(409, "The server slept and woke up during the profile; try again.", code="busy")
            return difference(before, after, time.monotonic() - begin)

    async def _sums(self) -> StepTimes:
        if self._service.loaded is None:
            raise not_ready()
        if self._service.sleeping:
            raise errors.sleeping()
        try:
            return await self._read()
        except EngineDiedError as error:
            raise errors.engine_gone(error.for_clients) from None


def difference(before: StepTimes, after: StepTimes, seconds: float) -> Profile:
    """The profile of an interval of so many seconds, from the sums at its ends."""
    first, last = before.steps, after.steps
    parts = {name: value - before.parts[name] for name, value in after.parts.items()}
    step_seconds = last.seconds - first.seconds
    return Profile(
        seconds=round(seconds, 3),
        steps=last.count - first.count,
        step_seconds=round(step_seconds, 6),
        prefill_tokens=last.prefill - first.prefill,
        decoded_tokens=last.rows - first.rows,
        context_tokens=last.context - first.context,
        part_seconds={name: round(value, 6) for name, value in parts.items()},
        other_seconds=round(max(0.0, step_seconds - sum(parts.values())), 6),
    )


async def post_profile(service: Service, request: Request) -> Response:
    """Profile the engine for some seconds: its steps, and the time by part of the model."""
    body = await json_body.read(request, ProfileRequest)
    if service.profiler is None:
        raise not_ready()
    return await json_unless_gone(request.receive, _encoded(service.profiler, body.seconds), {})


async def _encoded(profiler: Profiler, seconds: float) -> bytes:
    return msgspec.json.encode(await profiler.profile(seconds))


ENDPOINTS = (
    HttpEndpoint(
        "POST",
        names.PATH_PROFILE,
        post_profile,
        body=ProfileRequest,
        answer=Profile,
        errors=(409, 503),
        example={"seconds": 5},
    ),
)
