"""Polls the limit gossip of the other gateways, about once a second, so that limits apply to all of them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from octavo_gateway.access.limit_gossip import GossipMessage, LimitGossip
from octavo_gateway.discovery.dns import Resolver
from octavo_gateway.metrics import GatewayMetrics
from octavo_protocol.names import PATH_PEERS

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
TIMEOUT = aiohttp.ClientTimeout(total=0.8)
# Bytes of the message of a gateway with ten thousand limited keys.
MAX_MESSAGE = 4 * 1024 * 1024


class PeerClient:
    """Polls every address that `hosts` (name and port of second ports) resolve to. One of them may be this gateway.

    `gateways` is called with the number of gateways, this one included.
    """

    def __init__(
        self,
        gossip: LimitGossip,
        session: aiohttp.ClientSession,
        hosts: Sequence[tuple[str, int]],
        ticks: Callable[[], float],
        metrics: GatewayMetrics,
        gateways: Callable[[int], None],
    ) -> None:
        self._gossip = gossip
        self._session = session
        self._hosts = hosts
        self._ticks = ticks
        self._metrics = metrics
        self._gateways = gateways
        self._resolver = Resolver()
        self._known: dict[str, str] = {}
        self._silent: frozenset[str] = frozenset()
        self._missing: frozenset[str] = frozenset()
        self._failed: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.round()

    async def round(self) -> None:
        """Poll every peer once, and divide the limits into new parts."""
        found: dict[str, None] = {}
        for host, port in self._hosts:
            found.update(dict.fromkeys(await self._resolver.addresses(host, port)))
        polled = await asyncio.gather(*(self._polled(address) for address in found))
        self._known = {address: known for address, known in self._known.items() if address in found}
        self._failed &= found.keys()
        silent = frozenset(address for address, ok in zip(found, polled, strict=True) if not ok)
        # Log only the second failure in a row: a starting gateway, this one in its first round too, has no second port.
        missing, self._silent = silent & self._silent, silent
        if missing != self._missing:
            log.warning("unreachable gateways: %s", ", ".join(sorted(missing)) or "none")
            self._missing = missing
        ids = {self._known[address] for address in found if address in self._known} - {self._gossip.id}
        others = [*ids, *(None for address in found if address not in self._known)]
        alive, total = self._gossip.share_out(others, self._ticks())
        self._metrics.gateways.labels("heard").set(alive)
        self._metrics.gateways.labels("silent").set(total - alive)
        self._gateways(total)

    async def _poll_one(self, address: str) -> bool:
        try:
            async with self._session.get(f"http://{address}{PATH_PEERS}", timeout=TIMEOUT) as response:
                if response.status != 200:
                    return False
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > MAX_MESSAGE:
                        return False
                message = msgspec.json.decode(data, type=GossipMessage)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            log.debug("gateway %s not heard: %r", address, error)
            return False
        self._known[address] = message.id
        self._gossip.receive(message, self._ticks())
        return True

    async def _polled(self, address: str) -> bool:
        """True if one peer answered; no error caused by its answer stops the polling of the others."""
        try:
            return await self._poll_one(address)
        except Exception as error:
            self._metrics.peer_errors.inc()
            if address not in self._failed:
                log.warning("invalid gossip message of gateway %s: %r", address, error, exc_info=error)
                self._failed.add(address)
            return False
