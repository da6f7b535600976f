"""The phases of a run, and the operator's process through all of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
from tests.scale import plane, world
from tests.scale.gauge import Sample, figures, look
from tests.scale.report import REST, Phase
from tests.scale.world import OPERATOR_NAMESPACE, ROOT, Size

from localcluster import ControlPlane
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, PODS

PORT = 8081
SAMPLE_SECONDS = 4.0
LIMIT_SECONDS = 900.0


class StuckError(Exception):
    """A phase did not end in time."""


class Run:
    """One run: the process under measure, its samples, and the phases so far."""

    def __init__(self, kube: KubeClient, control: ControlPlane, folder: Path, size: Size, workers: int) -> None:
        self._kube = kube
        self._control = control
        self._folder = folder
        self._size = size
        self._workers = workers
        self._process: subprocess.Popen[bytes] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._started = time.monotonic()
        self.stuck = ""
        self.samples: list[Sample] = []
        self.phases: list[Phase] = []

    async def all(self, rest: float) -> None:
        """The phases in order. Raises StuckError when one does not end."""
        size = self._size
        self._say(f"{size.nodes} nodes, {size.deployments} LLMDeployments, {size.pods} pods")
        await world.furnish(self._kube, size)
        self._kubeconfig = await world.operator_kubeconfig(self._kube, self._control, self._folder)
        self._say("the nodes are there")
        await self._start()
        await self._phase(
            "create",
            f"create {size.deployments}, all ready",
            lambda: world.create(self._kube, size),
            self._all_settled,
        )
        await self._quiet()
        await self._phase(REST, f"rest {rest:.0f} s", lambda: asyncio.sleep(rest), self._at_once)
        await self._phase(
            "change", f"change {size.changed} specs, all rolled", lambda: world.change(self._kube, size),
            self._all_settled,
        )  # fmt: skip
        await self._phase(
            "delete pods", f"delete {size.deleted_pods} pods, all back",
            lambda: world.delete_pods(self._kube, size), self._all_settled,
        )  # fmt: skip
        await self._quiet()
        await self._end()
        await self._start()
        await self._phase("restart", "restart, until every key was looked at", self._nothing, self._all_known)
        await self._quiet()
        await self._phase(
            "delete all", f"delete {size.deployments}, nothing left", lambda: world.delete_all(self._kube, size),
            self._all_gone,
        )  # fmt: skip

    async def stop(self) -> None:
        """End what still runs."""
        if self._sampling is not None:
            self._sampling.cancel()
        if self._process is not None:
            plane.end(self._process)

    async def _start(self) -> None:
        command = [sys.executable, "-m", "octavo_operator", "--server-image", "server:1", "--server-cpu-image", "cpu:1"]
        command += ["--namespace", OPERATOR_NAMESPACE, "--host", "127.0.0.1", "--port", str(PORT)]
        command += ["--workers", str(self._workers)]
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
        self._process = plane.start(command, self._folder / "operator.log", env=environment)
        self._sampling = asyncio.create_task(self._sample(psutil.Process(self._process.pid)))
        before = len(self.samples)
        end = time.monotonic() + 60
        while len(self.samples) == before:
            if time.monotonic() > end or self._process.poll() is not None:
                raise StuckError(f"the operator does not answer:\n{self._log_tail()}")
            await asyncio.sleep(0.1)

    async def _end(self) -> None:
        assert self._process is not None
        assert self._sampling is not None
        self._sampling.cancel()
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 30)

    async def _sample(self, process: psutil.Process) -> None:
        while True:
            try:
                self.samples.append(
                    await asyncio.to_thread(look, f"http://127.0.0.1:{PORT}/metrics", process, time.time())
                )
            except OSError:
                await asyncio.sleep(0.2)
            else:
                await asyncio.sleep(SAMPLE_SECONDS)

    async def _phase(
        self, name: str, what: str, do: Callable[[], Awaitable[object]], done: Callable[[], Awaitable[str]]
    ) -> None:
        """Do it and wait until `done` has nothing left to say. The phase ends with the first sample after that."""
        first = len(self.samples) - 1
        began = self.samples[first].at
        self._say(what)
        await do()
        end = time.monotonic() + LIMIT_SECONDS
        shown = time.monotonic()
        while missing := await self._asked(done):
            if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                raise StuckError(f"{what}: {missing}\n{self._log_tail()}")
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                self._say(f"  {missing}; {self._now()}")
            await asyncio.sleep(1)
        length = len(self.samples)
        while len(self.samples) == length:  # noqa: ASYNC110 - one of many polls
            await asyncio.sleep(0.1)
        found = figures(self.samples[first:])
        self.phases.append(Phase(name, what, began, found))
        self._say(
            f"  {found.seconds:.0f} s, {found.passes:.0f} passes, p99 {found.p99 * 1e3:.0f} ms, "
            f"{found.requests:.0f} requests ({found.qps:.1f}/s), {found.cpu:.0f} CPU s, {found.rss / 1e6:.0f} MB"
        )

    @staticmethod
    async def _asked(done: Callable[[], Awaitable[str]]) -> str:
        try:
            return await done()
        except KubeError as error:
            return str(error)

    async def _quiet(self) -> None:
        """Until the operator has had nothing to do for ten seconds."""
        since, passes = time.monotonic(), -1.0
        while time.monotonic() - since < 10:
            now = self.samples[-1]
            if now.depth or now.passes != passes:
                since, passes = time.monotonic(), now.passes
            await asyncio.sleep(0.5)

    async def _nothing(self) -> None:
        return None

    async def _at_once(self) -> str:
        return ""

    async def _all_settled(self) -> str:
        # What the operator says is cheap to ask; what the API server has, decides.
        if self.samples[-1].ready < self._size.pods:
            return f"{self.samples[-1].ready} of {self._size.pods} ready"
        found = await world.states(self._kube)
        left = [state for state in found if not world.settled(state)]
        if left or len(found) < self._size.deployments:
            return f"{len(left)} of {len(found)} not settled, such as {world.counts(left[0]) if left else 'none'}"
        return ""

    async def _all_known(self) -> str:
        known = self.samples[-1].known
        return "" if known == self._size.deployments else f"{known} of {self._size.deployments} looked at"

    async def _all_gone(self) -> str:
        left = {r.plural: await world.count(self._kube, r) for r in (DEPLOYMENTS, PODS)}
        left["known to the operator"] = self.samples[-1].known
        left[LLMDEPLOYMENTS.plural] = len(await self._kube.list(LLMDEPLOYMENTS, None))
        return ", ".join(f"{number} {what}" for what, number in left.items() if number)

    def _now(self) -> str:
        last = self.samples[-1]
        return (
            f"queue {last.depth:.0f}, {last.passes:.0f} passes, {last.requests:.0f} requests, {last.rss / 1e6:.0f} MB"
        )

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.0f}s  {text}", flush=True)

    def _log_tail(self) -> str:
        return "\n".join((self._folder / "operator.log").read_text(errors="replace").splitlines()[-20:])
