"""Leader election with a Lease, as in client-go: the API server's optimistic locking decides which replica leads.

Another candidate may take over a Lease that was not renewed for `duration` seconds. The candidate measures this with
its own clock; the times written in the Lease do not count. A leader that could not renew for `deadline` seconds, which
is less than `duration`, stops leading. From that moment it writes nothing: every write first checks `left`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from octavo_operator.api.base import Json
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import ConflictError, KubeError
from octavo_operator.kube.resources import LEASES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Lease durations in seconds: LeaseDuration, RenewDeadline and RetryPeriod of client-go."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


def timing(seconds: float) -> Timing:
    """Timing for a lease duration in client-go's proportions 15 : 10 : 2; the retry period is at most 2 s."""
    return Timing(seconds, seconds * 2 / 3, min(2.0, seconds / 7.5))


def boottime() -> float:
    """Monotonic seconds including system suspend, which `time.monotonic` excludes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Timeout in seconds of one attempt after the deadline: after a system suspend a leader may renew a Lease that is free.
_LAST_TRY = 1.0


class LeaseLock:
    """One candidate for one Lease. `clock` returns monotonic seconds."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        timing: Timing = Timing(),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._timing = timing
        self._observed: Json = {}
        self._observed_at = clock()
        self._renewed = float("-inf")
        self.last_try = clock()

    def left(self) -> float:
        """Seconds for which this process certainly holds the Lease; 0 or less if another one may hold it."""
        return self._renewed + self._timing.deadline - self._clock()

    async def acquire(self) -> None:
        """Wait until this candidate holds the Lease."""
        while not await self._attempt(self._free):  # noqa: ASYNC110 - the Lease is remote: no local event to wait for
            await asyncio.sleep(self._timing.retry)

    async def hold(self) -> None:
        """Renew the Lease periodically; return when it is lost."""
        while self.left() > 0:
            await asyncio.sleep(self._timing.retry)
            try:
                async with asyncio.timeout(max(self.left(), _LAST_TRY)):
                    if not await self._attempt(self._ours) and not self._ours():
                        break
            except TimeoutError:
                break
        self._renewed = float("-inf")

    async def release(self) -> None:
        """Release the Lease, so that the next leader need not wait for it to expire."""
        self._renewed = float("-inf")
        try:
            body = await self._client.get(LEASES, self._namespace, self._name)
            if body and body["spec"].get("holderIdentity") == self._identity:
                body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, body)
        except KubeError as error:
            logger.info("lease not released: %s", error)

    def _holder(self) -> str:
        return str(self._observed.get("holderIdentity") or "")

    def _ours(self) -> bool:
        return self._holder() == self._identity

    def _free(self) -> bool:
        """True if the last observed Lease is ours, released or expired."""
        duration = self._observed.get("leaseDurationSeconds") or self._timing.duration
        return self._holder() in ("", self._identity) or self._clock() - self._observed_at >= duration

    async def _attempt(self, allowed: Callable[[], bool]) -> bool:
        """Acquire or renew the Lease if `allowed` for its current state; return True on success."""
        self.last_try = self._clock()
        try:
            body = await self._read()
            if not allowed():
                return False
            # The time of the request, not of the response: other candidates count from the write in between.
            requested_at = self._clock()
            if body is None:
                answer = await self._client.create(LEASES, self._lease(None))
            else:
                answer = await self._client.replace(LEASES, self._lease(body))
        except ConflictError:
            # Another client wrote the Lease in between: read the new holder at once.
            with contextlib.suppress(KubeError):
                await self._read()
            return False
        except KubeError as error:
            logger.info("lease not acquired: %s", error)
            return False
        self._observed, self._observed_at, self._renewed = answer["spec"], self._clock(), requested_at
        return True

    async def _read(self) -> Json | None:
        """The current Lease. A deleted Lease stays valid for those that observed it: its holder creates it again."""
        body = await self._client.get(LEASES, self._namespace, self._name)
        spec = body.get("spec", {}) if body else self._observed
        if spec != self._observed:
            self._observed, self._observed_at = spec, self._clock()
        return body

    def _lease(self, current: Json | None) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: Json = current["spec"] if current else {}
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "acquireTime": before["acquireTime"] if mine and "acquireTime" in before else now,
            "renewTime": now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (0 if mine or not current else 1),
        }
        if current is not None:
            return {**current, "spec": spec}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
