"""The operator's process: which parts there are and how they are connected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from octavo_operator.api.resource import Key
from octavo_operator.app import watches
from octavo_operator.app.health import ProcessState, application
from octavo_operator.app.leader import LeaseLock, Timing, boottime
from octavo_operator.app.watch_health import WatchHealth
from octavo_operator.app.workqueue import WorkQueue
from octavo_operator.autoscaler.decision_log import DecisionLog
from octavo_operator.autoscaler.loop import AutoscaleLoop
from octavo_operator.autoscaler.report_client import fetch
from octavo_operator.kube.client import KubeClient, connection
from octavo_operator.kube.errors import KubeError, NotFoundError, retry_after
from octavo_operator.kube.permissions import LEASE_NAME
from octavo_operator.kube.resources import LLMDEPLOYMENTS, PODS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.reconcile.nodes import NodeGpuReader
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.version_tracker import ObjectChange, VersionTracker
from octavo_operator.resources.common import COMPONENT_GATEWAY, Installation
from octavo_protocol import names

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
# Resources that are looked at with one list of each kind: what is in memory at once, and in the address of the list.
_TOGETHER = 50
# A pass makes a dozen calls of at most 30 s; one that takes longer hangs.
STUCK_SECONDS = 300.0
# A watch is asked for anew every five minutes at the latest; one that is not has no task any more.
WATCH_SILENCE_SECONDS = 420.0
# After watches have read everything anew: how long to gather the others, and how often at most.
_RELIST_SECONDS = 1.0
RELISTS_APART = 15.0
_LEASE_SILENCE_SECONDS = 60.0
_CRD_POLL_SECONDS = 2.0
_WATCHES_CLOSE_SECONDS = 3.0
_SAMPLE_TIMEOUT = 1.0


class LeaseLostError(Exception):
    """Another replica may be reconciling: this process must write nothing more."""


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """What the command line decides. No `scope` means all namespaces."""

    installation: Installation
    scope: tuple[str, ...]
    lease_namespace: str
    identity: str
    host: str
    port: int
    workers: int
    lease: Timing = field(default_factory=Timing)
    decision_log: Path | None = None


class App:
    """One operator process. All replicas watch and answer; the holder of the Lease reconciles."""

    def __init__(
        self, options: OperatorOptions, client: KubeClient, http: aiohttp.ClientSession, metrics: OperatorMetrics
    ) -> None:
        self._options = options
        self._client = client
        self._metrics = metrics
        self._version_tracker = VersionTracker()
        self._queue: WorkQueue[Key] = WorkQueue(metrics.queue, retry_after, self._version_tracker.needs_pass)
        self._lease = LeaseLock(client, options.lease_namespace, LEASE_NAME, options.identity, boottime, options.lease)
        log = DecisionLog(options.decision_log) if options.decision_log else None
        self._loop = AutoscaleLoop(
            partial(fetch, http), self._gateways, self._ask, metrics, time.time, log, time.monotonic
        )
        self._reconciler = Reconciler(
            client.fenced(self._lease.left),
            options.installation,
            self._loop,
            metrics,
            time.time,
            options.identity,
            self._version_tracker,
            # Roles of namespaces cannot grant nodes.
            None if options.scope else NodeGpuReader(client, time.monotonic),
        )
        self._leading = False
        self._undefined = False
        self._resynced = time.monotonic()
        self._watching = asyncio.Event()
        self._relisted = asyncio.Event()
        self._looked = asyncio.Event()
        self._stop = asyncio.Event()
        self._pulse = WatchHealth(watches.watches(options.scope), self._watching.set, self._relisted.set)

    def stop(self) -> None:
        """Have `run` return."""
        self._stop.set()

    async def run(self) -> None:
        """Run until told to end. Raises LeaseLostError when the lead is lost."""
        self._handle_signals()
        async with self._serving():
            await self._wait_for_crd()
            lead = asyncio.create_task(self._lead(), name="lead")
            watch = asyncio.create_task(self._watch(), name="watch")
            stop = asyncio.create_task(self._stop.wait(), name="stop")
            await asyncio.wait({lead, watch, stop}, return_when=asyncio.FIRST_COMPLETED)
            # First the writes stop, then another replica may take over, then the watches close.
            lead.cancel()
            await asyncio.wait({lead})
            if self._leading and lead.cancelled():
                await self._lease.release()
            self._stop.set()
            await asyncio.wait({watch}, timeout=_WATCHES_CLOSE_SECONDS)
            for task in (lead, watch):
                if task.done() and not task.cancelled():
                    task.result()

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            # kopf handles the signals too, and would close the watches before the Lease is given back.
            again = tasks.create_task(self._watching.wait(), name="watching")
            again.add_done_callback(lambda _: self._handle_signals())
            await watches.watch(self._notice, connection, self._options.scope, self._stop, self._pulse)
            again.cancel()

    def _notice(self, change: ObjectChange) -> None:
        """An event. Who takes the lead looks at everything, whatever events said before."""
        if self._leading:
            self._version_tracker.observe(change)
            self._queue.add(change.key)

    def _ask(self, key: Key) -> None:
        """Have `key` reconciled, whether or not events tell something new."""
        self._version_tracker.force(key)
        self._queue.add(key)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _stopped_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _lead(self) -> None:
        """Wait for the Lease, then reconcile until it is lost."""
        await self._lease.acquire()
        logger.info("leading", extra={"identity": self._options.identity})
        self._leading, self._resynced = True, time.monotonic()
        self._metrics.leading(True)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._options.workers):
                tasks.create_task(self._work(), name=f"worker-{number}")
            tasks.create_task(self._loop.run(), name="autoscale")
            tasks.create_task(self._resync(), name="resync")
            await self._lease.hold()
            raise LeaseLostError(f"lease {self._options.lease_namespace}/{LEASE_NAME} lost")

    async def _work(self) -> None:
        # A few lists tell which of thousands need a pass; the events of the first lists ask for all.
        await self._looked.wait()
        await self._queue.work(self._reconciler.reconcile)

    async def _resync(self) -> None:
        """Look at everything every few minutes, and whenever a watch has missed something."""
        while True:
            self._relisted.clear()
            try:
                await self._look_at_everything()
            except KubeError as error:
                logger.warning("resync failed: %s", error)
                self._looked.set()
                await asyncio.sleep(10)
                continue
            self._looked.set()
            await asyncio.sleep(RELISTS_APART)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._relisted.wait(), RESYNC_SECONDS - RELISTS_APART)
                await asyncio.sleep(_RELIST_SECONDS)

    async def _look_at_everything(self) -> None:
        # Also what was there before: a list says nothing about what is gone.
        gone = set(self._reconciler.known)
        try:
            for namespace in self._options.scope or (None,):
                async for page in self._client.pages(LLMDEPLOYMENTS, namespace, size=_TOGETHER):
                    for key in await self._reconciler.screen(namespace, page):
                        self._ask(key)
                    gone -= {Key(body["metadata"]["namespace"], body["metadata"]["name"]) for body in page}
            self._undefined = False
        except NotFoundError:
            # Deleted, and with it all that there was of its kind: nothing is left to look at until it is back.
            self._say_undefined()
        for key in gone:
            self._ask(key)
        self._resynced = time.monotonic()

    async def _wait_for_crd(self) -> None:
        """Kopf looks once which kinds there are: one that comes later would never be watched."""
        while not self._stop.is_set():
            try:
                for namespace in self._options.scope or (None,):
                    await self._client.list(LLMDEPLOYMENTS, namespace, fields="metadata.name=none")
            except NotFoundError:
                self._say_undefined()
            except KubeError as error:
                logger.warning("%s", error)
            else:
                self._undefined = False
                return
            await self._stopped_within(_CRD_POLL_SECONDS)

    def _say_undefined(self) -> None:
        if not self._undefined:
            logger.warning("the CustomResourceDefinition %s.%s is not there", names.PLURAL, names.API_GROUP)
        self._undefined = True

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        answers = ProcessState(
            unhealthy=self._unhealthy,
            unready=lambda: "" if self._watching.is_set() else "the watches are not running yet",
            leading=lambda: self._leading,
            wake=self._loop.wake,
            metrics=self._metrics,
        )
        runner = web.AppRunner(application(answers), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._options.host, self._options.port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    def _unhealthy(self) -> str:
        if not self._watching.is_set():
            return ""
        now = time.monotonic()
        if self._leading and now - self._resynced > 2 * RESYNC_SECONDS + STUCK_SECONDS:
            return f"no resync for {now - self._resynced:.0f} s"
        if self._queue.longest_running() > STUCK_SECONDS:
            return f"one pass takes {self._queue.longest_running():.0f} s"
        if boottime() - self._lease.last_try > _LEASE_SILENCE_SECONDS:
            return f"the lease was not looked at for {boottime() - self._lease.last_try:.0f} s"
        if self._pulse.silence() > WATCH_SILENCE_SECONDS:
            return f"a watch has asked for nothing for {self._pulse.silence():.0f} s"
        return ""

    async def _gateways(self) -> dict[str, str]:
        try:
            pods = await self._client.list(
                PODS, self._options.installation.namespace, labels=f"{names.LABEL_COMPONENT}={COMPONENT_GATEWAY}"
            )
        except KubeError as error:
            raise OSError(error.message) from error
        return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods if pod.get("status", {}).get("podIP")}


async def run(options: OperatorOptions) -> None:
    """Run one operator process until it is told to end."""
    metrics = OperatorMetrics()
    client = await KubeClient.connect(metrics.called)
    timeout = aiohttp.ClientTimeout(total=_SAMPLE_TIMEOUT)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await App(options, client, http, metrics).run()
    finally:
        await client.close()
