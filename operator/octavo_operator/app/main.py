"""The operator process: creates its parts and connects them."""

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
# Resources screened with one list per kind of child: bounds memory and the length of the label selector in the URL.
_SCREEN_BATCH = 50
# A pass makes about a dozen calls of at most 30 s each; a longer one hangs.
STUCK_SECONDS = 300.0
# A watch reconnects every five minutes at the latest; one that does not has lost its task.
WATCH_SILENCE_SECONDS = 420.0
# After a watch relisted: seconds to wait for other watches to relist too, and the minimum between two resyncs.
_RELIST_SECONDS = 1.0
RELISTS_APART = 15.0
_LEASE_SILENCE_SECONDS = 60.0
_CRD_POLL_SECONDS = 2.0
_WATCHES_CLOSE_SECONDS = 3.0
_SAMPLE_TIMEOUT = 1.0


class LeaseLostError(Exception):
    """Another replica may be the leader: this process must not write any more."""


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Options from the command line. An empty `scope` means all namespaces."""

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
    """One operator process. All replicas watch and serve HTTP; the leader reconciles."""

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
            partial(fetch, http), self._gateways, self._force, metrics, time.time, log, time.monotonic
        )
        self._reconciler = Reconciler(
            client.fenced(self._lease.left),
            options.installation,
            self._loop,
            metrics,
            time.time,
            options.identity,
            self._version_tracker,
            # Nodes are cluster-scoped: the Roles of a namespaced installation cannot grant them.
            None if options.scope else NodeGpuReader(client, time.monotonic),
        )
        self._leading = False
        self._undefined = False
        self._resynced = time.monotonic()
        self._watching = asyncio.Event()
        self._relisted = asyncio.Event()
        self._screened = asyncio.Event()
        self._stop = asyncio.Event()
        self._watch_health = WatchHealth(watches.watches(options.scope), self._watching.set, self._relisted.set)

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stop`. Raises LeaseLostError when this process loses leadership."""
        self._handle_signals()
        async with self._serving():
            await self._wait_for_crd()
            lead = asyncio.create_task(self._lead(), name="lead")
            watch = asyncio.create_task(self._watch(), name="watch")
            stop = asyncio.create_task(self._stop.wait(), name="stop")
            await asyncio.wait({lead, watch, stop}, return_when=asyncio.FIRST_COMPLETED)
            # The order matters: stop writing, release the Lease to another replica, close the watches.
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
            # kopf installs signal handlers that would close the watches before the Lease is released: replace them.
            again = tasks.create_task(self._watching.wait(), name="watching")
            again.add_done_callback(lambda _: self._handle_signals())
            await watches.watch(self._notice, connection, self._options.scope, self._stop, self._watch_health)
            again.cancel()

    def _notice(self, change: ObjectChange) -> None:
        """Handle a watch event. Replicas that do not lead ignore events: a new leader screens every resource."""
        if self._leading:
            self._version_tracker.observe(change)
            self._queue.add(change.key)

    def _force(self, key: Key) -> None:
        """Reconcile `key` even if no event reported a new version."""
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
        """Acquire the Lease, then reconcile until it is lost."""
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
        # The screening finds the few of thousands of resources that need a pass; the initial events name all of them.
        await self._screened.wait()
        await self._queue.work(self._reconciler.reconcile)

    async def _resync(self) -> None:
        """Screen all resources every few minutes, and whenever a watch may have missed events."""
        while True:
            self._relisted.clear()
            try:
                await self._screen_all()
            except KubeError as error:
                logger.warning("resync failed: %s", error)
                self._screened.set()
                await asyncio.sleep(10)
                continue
            self._screened.set()
            await asyncio.sleep(RELISTS_APART)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._relisted.wait(), RESYNC_SECONDS - RELISTS_APART)
                await asyncio.sleep(_RELIST_SECONDS)

    async def _screen_all(self) -> None:
        # Known keys that no list contains any more were deleted; they need a pass, too.
        gone = set(self._reconciler.known)
        try:
            for namespace in self._options.scope or (None,):
                async for page in self._client.pages(LLMDEPLOYMENTS, namespace, size=_SCREEN_BATCH):
                    for key in await self._reconciler.screen(namespace, page):
                        self._force(key)
                    gone -= {Key(body["metadata"]["namespace"], body["metadata"]["name"]) for body in page}
            self._undefined = False
        except NotFoundError:
            # The CRD was deleted, and with it all LLMDeployments: nothing to screen until it is created again.
            self._warn_undefined()
        for key in gone:
            self._force(key)
        self._resynced = time.monotonic()

    async def _wait_for_crd(self) -> None:
        """Wait until the CRD exists: kopf discovers kinds once at start and would never watch a later one."""
        while not self._stop.is_set():
            try:
                for namespace in self._options.scope or (None,):
                    await self._client.list(LLMDEPLOYMENTS, namespace, fields="metadata.name=none")
            except NotFoundError:
                self._warn_undefined()
            except KubeError as error:
                logger.warning("%s", error)
            else:
                self._undefined = False
                return
            await self._stopped_within(_CRD_POLL_SECONDS)

    def _warn_undefined(self) -> None:
        if not self._undefined:
            logger.warning("the CustomResourceDefinition %s.%s does not exist", names.PLURAL, names.API_GROUP)
        self._undefined = True

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        process = ProcessState(
            unhealthy=self._unhealthy,
            unready=lambda: "" if self._watching.is_set() else "the watches have not listed all resources yet",
            leading=lambda: self._leading,
            wake=self._loop.wake,
            metrics=self._metrics,
        )
        runner = web.AppRunner(application(process), access_log=None)
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
            return f"one reconcile pass has run for {self._queue.longest_running():.0f} s"
        if boottime() - self._lease.last_try > _LEASE_SILENCE_SECONDS:
            return f"no attempt on the lease for {boottime() - self._lease.last_try:.0f} s"
        if self._watch_health.silence() > WATCH_SILENCE_SECONDS:
            return f"a watch has sent no request for {self._watch_health.silence():.0f} s"
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
    """Run one operator process until SIGTERM or SIGINT."""
    metrics = OperatorMetrics()
    client = await KubeClient.connect(metrics.called)
    timeout = aiohttp.ClientTimeout(total=_SAMPLE_TIMEOUT)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await App(options, client, http, metrics).run()
    finally:
        await client.close()
