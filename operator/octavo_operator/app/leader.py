"""Leader election with a Lease, as client-go does it: who reconciles is decided by the API server's optimistic locking.

A holder that does not renew for `duration` seconds, by the watcher's own clock and not by the times written in the
Lease, may be replaced; a holder that could not renew for `deadline` < `duration` seconds stops being one, and writes
nothing from that moment on, whether it has noticed yet or not: `left` is asked before every write.
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
    """Seconds."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


def timing(seconds: float) -> Timing:
    """The proportions of client-go, 15 to 10 to 2, for another duration; asking more often than 2 s is of no use."""
    return Timing(seconds, seconds * 2 / 3, min(2.0, seconds / 7.5))


def boottime() -> float:
    """Seconds that never go back and count on while the machine sleeps, which those of `time.monotonic` do not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Seconds for one attempt after the time is over: who slept through it may go on when nobody else came.
_LAST_TRY = 1.0


class LeaseLock:
    """One contender for one Lease. `clock` counts seconds and never goes back."""

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
        self._seen: Json = {}
        self._seen_at = clock()
        self._renewed = float("-inf")
        self.last_try = clock()

    def left(self) -> float:
        """Seconds for which the Lease is certainly ours; 0 and less when it may not be."""
        return self._renewed + self._timing.deadline - self._clock()

    async def acquire(self) -> None:
        """Wait until this contender holds the Lease."""
        while not await self._attempt(self._free):  # noqa: ASYNC110 - it is elsewhere: no event of this process tells
            await asyncio.sleep(self._timing.retry)

    async def hold(self) -> None:
        """Renew until it does not work any more; then return."""
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
        """Give the Lease up, so that the next one need not wait for it to run out."""
        self._renewed = float("-inf")
        try:
            body = await self._client.get(LEASES, self._namespace, self._name)
            if body and body["spec"].get("holderIdentity") == self._identity:
                body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, body)
        except KubeError as error:
            logger.info("lease not released: %s", error)

    def _holder(self) -> str:
        return str(self._seen.get("holderIdentity") or "")

    def _ours(self) -> bool:
        return self._holder() == self._identity

    def _free(self) -> bool:
        """Whether the Lease as it was last seen is ours, given up or run out."""
        duration = self._seen.get("leaseDurationSeconds") or self._timing.duration
        return self._holder() in ("", self._identity) or self._clock() - self._seen_at >= duration

    async def _attempt(self, allowed: Callable[[], bool]) -> bool:
        """Take or renew the Lease if what is seen of it allows to; whether it worked."""
        self.last_try = self._clock()
        try:
            body = await self._look()
            if not allowed():
                return False
            # Not the time of the answer: others count from the moment of the write.
            asked = self._clock()
            if body is None:
                answer = await self._client.create(LEASES, self._lease(None))
            else:
                answer = await self._client.replace(LEASES, self._lease(body))
        except ConflictError:
            # Somebody wrote it in between. A holder must know at once who.
            with contextlib.suppress(KubeError):
                await self._look()
            return False
        except KubeError as error:
            logger.info("lease not taken: %s", error)
            return False
        self._seen, self._seen_at, self._renewed = answer["spec"], self._clock(), asked
        return True

    async def _look(self) -> Json | None:
        """The Lease as it is. One that somebody deleted still binds those who saw it: its holder makes it again."""
        body = await self._client.get(LEASES, self._namespace, self._name)
        spec = body.get("spec", {}) if body else self._seen
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock()
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
