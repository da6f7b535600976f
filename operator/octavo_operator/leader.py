"""Leader election with a Lease, as client-go does it: who reconciles is decided by the API server's optimistic locking.

A holder that does not renew for `duration` seconds, by the watcher's own clock and not by the times written in the
Lease, may be replaced; a holder that could not renew for `deadline` < `duration` seconds stops being one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from octavo_operator.api.blocks import Json
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import LEASES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


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
        self.last_try = clock()

    async def acquire(self) -> None:
        """Wait until this contender holds the Lease."""
        while not await self._attempt():  # noqa: ASYNC110 - the Lease is elsewhere: no event of this process tells
            await asyncio.sleep(self._timing.retry)

    async def hold(self) -> None:
        """Renew until it does not work any more; then return."""
        renewed = self._clock()
        while self._clock() - renewed < self._timing.deadline:
            await asyncio.sleep(self._timing.retry)
            left = self._timing.deadline - (self._clock() - renewed)
            try:
                async with asyncio.timeout(max(left, 0.1)):
                    if await self._attempt():
                        renewed = self._clock()
                    elif self._holder() != self._identity:
                        return
            except TimeoutError:
                return

    async def release(self) -> None:
        """Give the Lease up, so that the next one need not wait for it to run out."""
        try:
            body = await self._client.get(LEASES, self._namespace, self._name)
            if body and body["spec"].get("holderIdentity") == self._identity:
                body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, body)
        except KubeError as error:
            logger.info("lease not released: %s", error)

    def _holder(self) -> str:
        return str(self._seen.get("holderIdentity") or "")

    async def _attempt(self) -> bool:
        """Take or renew the Lease if it is free or ours; whether it worked."""
        self.last_try = self._clock()
        try:
            body = await self._client.get(LEASES, self._namespace, self._name)
            if body is None:
                await self._client.create(LEASES, self._lease(None))
                return True
            spec = body.get("spec", {})
            if spec != self._seen:
                self._seen, self._seen_at = spec, self._clock()
            duration = spec.get("leaseDurationSeconds") or self._timing.duration
            held = self._holder() not in ("", self._identity)
            if held and self._clock() - self._seen_at < duration:
                return False
            answer = await self._client.replace(LEASES, self._lease(body))
        except KubeError as error:
            logger.info("lease not taken: %s", error)
            return False
        self._seen, self._seen_at = answer["spec"], self._clock()
        return True

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
