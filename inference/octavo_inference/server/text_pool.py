"""Threads for tokenising and chat templates, shared fairly between clients.

A job is a list of steps, such as the prompts of one request. Steps run one after the other, and between two of them
other jobs get their turn. The client whose jobs have used the least time is next; an idle client gains no credit: on
return its time is lifted to that of the last client served. Cancelling a job drops the steps that have not begun.

The bytes of all jobs are bounded before (`server.intake`), so the queues have no bound of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
Step = Callable[[], Any]

THREADS = 2


class _Job:
    def __init__(self, client: str, steps: Iterable[Step], done: asyncio.Future[list[Any]]) -> None:
        self.client = client
        self.steps = deque(steps)
        self.results: list[Any] = []
        self.done = done


class TextPool:
    """Runs steps in `threads` threads. Used from one event loop. `threads` also takes short work besides the jobs."""

    def __init__(self, threads: int = THREADS, clock: Callable[[], float] = time.monotonic) -> None:
        self.threads = ThreadPoolExecutor(threads, "octavo-text")
        self._free = threads
        self._clock = clock
        self._waiting: dict[str, deque[_Job]] = {}
        # Seconds of thread time by client: virtual time, so only differences count.
        self._used: dict[str, float] = {}
        self._last_served = 0.0

    @property
    def is_idle(self) -> bool:
        """True if a job's first step would begin at once."""
        return self._free > 0

    @property
    def waiting(self) -> int:
        """Number of jobs with a step that waits for a thread."""
        return sum(map(len, self._waiting.values()))

    async def run(self, client: str, steps: Iterable[Callable[[], Result]]) -> list[Result]:
        """The results of the steps, in order. Raises the error of the first step that fails; later ones do not run."""
        job = _Job(client, steps, asyncio.get_running_loop().create_future())
        if not job.steps:
            return []
        self._enqueue(job)
        self._dispatch()
        try:
            return await job.done
        except asyncio.CancelledError:
            self._drop(job)
            raise
        finally:
            # An error refers to this frame, and the job to the error: without this the texts would wait for the
            # garbage collector.
            del job

    def close(self) -> None:
        """Drop what waits; steps that run end by themselves."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, job: _Job) -> None:
        queue = self._waiting.get(job.client)
        if queue is None:
            queue = self._waiting[job.client] = deque()
            self._used[job.client] = max(self._used.get(job.client, 0.0), self._last_served)
        queue.append(job)

    def _drop(self, job: _Job) -> None:
        queue = self._waiting.get(job.client)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._waiting[job.client]

    def _dispatch(self) -> None:
        while self._free and self._waiting:
            client = min(self._waiting, key=self._used.__getitem__)
            self._last_served = max(self._last_served, self._used[client])
            queue = self._waiting[client]
            job = queue.popleft()
            if not queue:
                del self._waiting[client]
            self._free -= 1
            self._start(job, job.steps.popleft())

    def _start(self, job: _Job, step: Step) -> None:
        loop = asyncio.get_running_loop()
        begun = self._clock()

        def report(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._finished, job, result, error, self._clock() - begun)

        def work() -> None:
            try:
                result = step()
            except BaseException as error:  # noqa: BLE001 -- anything else would lose the thread's slot
                report(None, error)
            else:
                report(result, None)

        self.threads.submit(work)

    def _finished(self, job: _Job, result: Any, error: BaseException | None, seconds: float) -> None:
        self._free += 1
        self._used[job.client] = self._used.get(job.client, self._last_served) + seconds
        if not job.done.done():
            if error is not None:
                job.done.set_exception(error)
            else:
                job.results.append(result)
                if job.steps:
                    self._enqueue(job)
                else:
                    job.done.set_result(job.results)
        if not self._waiting:
            # No client waits, so none is ahead of another.
            self._used.clear()
            self._last_served = 0.0
        self._dispatch()
