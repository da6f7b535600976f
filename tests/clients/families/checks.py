"""Runs the checks of a client in its environment: `python check_CLIENT.py PLACE`, where PLACE is a `Place` as JSON.

One line of JSON on stdout for each feature says whether it works. `checks.mjs` is the same for Node.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

FEATURES = (
    "chat", "stream", "asynchronous", "tools", "structured_output", "embeddings", "errors", "retries", "cancel"
)  # fmt: skip

# The model is small and answers freely: what tests rely on is bounded by types.
CITIES = ("Paris", "Rome", "Oslo")
QUESTION = "What is the temperature in Rome?"
DEGREES = {"Paris": 21, "Rome": 27, "Oslo": 9}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
"""The JSON schema of a tool's arguments."""
# With it, no answer ends before the test has ended it.
COUNT = "Count from one to a million, in words."
LONG_ANSWER = 3000
# More than the model's context of 4,096 tokens.
LONG_PROMPT = "word " * 5000
WRONG_KEY = "not-a-key"


@dataclass(frozen=True)
class Place:
    """A server, or a gateway with servers behind it. Addresses have no path."""

    url: str
    model: str
    key: str
    admin: list[str]
    limited_key: str | None = None  # accepted once a minute; servers have no such keys

    @property
    def base_url(self) -> str:
        """As clients of OpenAI want it."""
        return f"{self.url}/v1"


def run(**checks: Callable[[Place], None] | tuple[Callable[[Place], None], ...] | str) -> None:
    """Call the checks of each feature and report. A text says why the client does not have the feature."""
    if checks.keys() != set(FEATURES):
        raise TypeError(f"the features are {FEATURES}")
    place = Place(**json.loads(sys.argv[1]))
    for feature, check in checks.items():
        if not isinstance(check, str):
            print(json.dumps({"feature": feature, "error": _error(check, place)}), flush=True)


def _error(check: Any, place: Place) -> str:
    try:
        for one in check if isinstance(check, tuple) else (check,):
            one(place)
    except BaseException:  # noqa: BLE001 -- a client may raise anything; the other features are tried nevertheless
        return traceback.format_exc()
    return ""


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]) -> Any:
    """The error of a call, which has to be of a kind."""
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind} was raised: {str(found)[:500]}")


def load(place: Place) -> int:
    """Sequences that run or wait on the servers of a place."""
    total = 0
    for admin in place.admin:
        with urlopen(f"{admin}/v1/octavo/load", timeout=30) as response:  # noqa: S310 -- an address of the tests
            report = json.load(response)
        total += report["running"] + report["waiting"]
    return total


def assert_cancelled(place: Place, cancel: Callable[[], Any]) -> None:
    """Something runs; `cancel` ends it long before the answer is complete."""
    assert_running(place)
    cancel()
    assert_idle(place)


async def cancel_task(place: Place, task: asyncio.Task[Any]) -> None:
    """A task's call runs; cancelling the task ends it."""
    await asyncio.to_thread(assert_running, place)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(assert_idle, place)


def assert_running(place: Place) -> None:
    """Something runs, or starts within a moment."""
    _until(lambda: load(place) > 0, "nothing runs: is the answer complete already?")


def assert_idle(place: Place) -> None:
    """Nothing runs after a moment."""
    _until(lambda: load(place) == 0, "it still runs, 5 s after the client has cancelled it")


def _until(condition: Callable[[], bool], message: str) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + 5, message
        time.sleep(0.05)  # the servers have no event to wait for, and their processors are needed


@contextmanager
def asleep(place: Place, seconds: float = 0.7) -> Iterator[None]:
    """Servers answer 503 with Retry-After, and are woken after a time: what is called meanwhile has to try again."""
    for admin in place.admin:
        _post(f"{admin}/v1/octavo/sleep")

    def wake() -> None:
        time.sleep(seconds)  # the client's first try has to meet servers that sleep
        for admin in place.admin:
            _post(f"{admin}/v1/octavo/wake_up")

    with ThreadPoolExecutor(1) as pool:
        waking = pool.submit(wake)
        yield
        waking.result()  # what it raised


def _post(url: str) -> None:
    with urlopen(Request(url, method="POST"), timeout=60) as response:  # noqa: S310 -- as above
        response.read()
