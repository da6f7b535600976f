"""Forwards one call: reserves a replica, runs the exchange, and retries on another replica if no answer began.

It retries once after a failed connection, and after the 503 of each draining replica. No route has an effect that a
second attempt would repeat: a response stored by an attempt without an answer is one that no client knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from time import perf_counter

import aiohttp
from aiohttp import web

from octavo_gateway.api.errors import ApiError
from octavo_gateway.http.call import Call
from octavo_gateway.http.client_response import ClientResponse, form_of
from octavo_gateway.http.exchange import Exchange
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.arrivals import COMPUTED_SECONDS, Arrival
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.reservation import Ending, Reservation

log = logging.getLogger(__name__)

# A stream's response begins only after this silence: a short wait does not justify giving up the status code.
STREAM_GRACE_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 10.0


class Proxy:
    """Forwards calls over one client session.

    `hold_seconds`: longest wait of a call for a replica. `grace`: silence before the response of a held stream begins.
    `keep_alive`: seconds between comments.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        hold_seconds: float,
        *,
        grace: float = STREAM_GRACE_SECONDS,
        keep_alive: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._session = session
        self._metrics = metrics
        self._hold_seconds = hold_seconds
        self._grace = grace
        self._keep_alive = keep_alive

    async def forward(self, request: web.Request, pool: ModelPool, call: Call) -> web.StreamResponse:
        """Answer one call. A client that disconnects cancels it, which closes the connection to the replica."""
        form = form_of(request, call.route.usage)
        answer = ClientResponse(request, call.request_id, call.grant.headers(), form)
        pool.counters.wanted()
        pool.retries.earn()
        # Requests that need no engine keep a model from counting as idle, but need no more replicas.
        count = (lambda: pool.counters.arrived(call.prompt.tokens)) if call.route.in_engine else pool.counters.wanted
        arrival = Arrival(count)
        later = asyncio.get_running_loop().call_later(COMPUTED_SECONDS, arrival.counts)
        try:
            return await self._attempts(request, answer, pool, call, arrival)
        except ApiError as error:
            return await answer.fail(error)
        finally:
            later.cancel()
            arrival.counts()

    async def _attempts(
        self, request: web.Request, answer: ClientResponse, pool: ModelPool, call: Call, arrival: Arrival
    ) -> web.StreamResponse:
        retried, drained, adapter = False, set[Replica](), call.attributes.adapter
        stored = self._reserve_stored(pool, call)
        while True:
            reservation = stored or await self._reserve(answer, pool, call, arrival, drained)
            exchange = Exchange(self._session, self._metrics, pool, reservation, call, request, answer, arrival)
            try:
                response = await exchange.run()
            except asyncio.CancelledError:
                if not call.stream:
                    call.grant.usage.left(reservation.generated)
                raise
            finally:
                pool.settle(exchange.outcome())
            if response is not None:
                return response
            replica, drains = reservation.replica, exchange.ending is Ending.DRAINING
            if stored is not None and not drains:
                raise pool.unavailable("the replica that stores the response did not take the request", adapter)
            stored = None
            reason = "draining" if drains else "connect"
            fields = {"request_id": call.request_id}
            log.info("%s did not accept the request: %s", replica.endpoint.name, reason, extra=fields)
            # Draining is no fault and the refusal cost nothing. So a request sent just as the replica began to drain
            # must not be lost. A replica that refuses one request twice this way counts as faulty.
            if drains and replica not in drained:
                drained.add(replica)
            elif retried or not pool.retries.spend():
                raise pool.unavailable("the replicas did not take the request", adapter)
            else:
                retried = True
            self._metrics.retries.labels(call.model, reason).inc()

    def _reserve_stored(self, pool: ModelPool, call: Call) -> Reservation | None:
        """A place on the replica that stores the response to which the call refers; None without one.

        Without that replica any other may say that it does not know the response.
        """
        place = call.stored
        if place is None:
            return None
        reservation = pool.reserve_at(place.replica, place.url, call.prompt, call.attributes)
        if reservation is not None:
            self._metrics.routed(call.model, reservation)
        return reservation

    async def _reserve(
        self, answer: ClientResponse, pool: ModelPool, call: Call, arrival: Arrival, drained: Collection[Replica]
    ) -> Reservation:
        """A place on a replica, at once or after a hold. One that has drained comes last: it would refuse it again."""
        reservation = pool.reserve(call.prompt, call.attributes, drained)
        held = 0.0
        if reservation is None:
            arrival.counts()
            begun = perf_counter()
            queued = pool.hold(len(call.body), call.prompt, call.attributes)
            try:
                reservation = await self._wait(answer, queued.granted, pool, call)
            except BaseException:
                pool.cancel(queued)
                raise
            held = perf_counter() - begun
        self._metrics.hold_seconds.labels(call.model).observe(held)
        self._metrics.routed(call.model, reservation)
        self._metrics.overhead.observe(max(0.0, perf_counter() - call.started - held))
        return reservation

    async def _wait(
        self, answer: ClientResponse, granted: asyncio.Future[Reservation], pool: ModelPool, call: Call
    ) -> Reservation:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_seconds
        patience = self._grace
        while not granted.done():
            left, own = deadline - loop.time(), call.left()
            if own <= 0:
                raise call.expired()
            if left <= 0:
                raise pool.held_too_long(self._hold_seconds, call.attributes.adapter)
            left = min(left, own)
            await asyncio.wait([granted], timeout=min(left, patience) if call.stream else left)
            if call.stream and not granted.done() and min(deadline - loop.time(), call.left()) > 0:
                await answer.keep_alive()
                patience = self._keep_alive
        return granted.result()
