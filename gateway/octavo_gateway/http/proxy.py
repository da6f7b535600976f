"""One request from client to pod and its answer back.

Bytes pass unchanged. Another pod is tried only while nothing of an answer has come: once after a failed connection, and
after the 503 of each pod that drains. A stream that breaks ends with an error event, never as if it were complete.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import perf_counter

import aiohttp
from aiohttp import web

from octavo_gateway.access.control import RequestGrant
from octavo_gateway.http import headers
from octavo_gateway.http.client_response import EVENT_STREAM, ClientResponse
from octavo_gateway.http.sse import EventCutter
from octavo_gateway.http.stream_watchdog import lifeline
from octavo_gateway.metrics import GatewayMetrics, label
from octavo_gateway.openai import ApiError
from octavo_gateway.pool.arrivals import COMPUTED_SECONDS, Arrival
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.reservation import Reservation
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.names import HEADER_DRAINING, HEADER_PROMPT, HEADER_TIMEOUT, HEADER_WANT_PROMPT

log = logging.getLogger(__name__)

# A short wait is not worth giving up the status code for.
STREAM_GRACE_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 10.0
# The last event of a stream that came to its end.
_DONE = b"data: [DONE]"
# Answers that are not streamed are read whole before a byte is passed on, so that a broken one can become a 502.
MAX_PLAIN_ANSWER = 64 * 1024 * 1024
_SKIPPED = ("User-Agent", "Accept-Encoding")


class UnreachedError(Exception):
    """The pod did not take the request. `reason` is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Call:
    """A request as far as the gateway has read it. `path` is the route's own, not the client's spelling.

    `timeout` seconds after `started` nobody wants the answer any more.
    """

    path: str
    body: bytes
    stream: bool
    prompt: Prompt
    request_id: str
    started: float
    visit: RequestGrant
    terms: RequestAttributes
    timeout: float | None = None

    def left(self) -> float:
        """Seconds of its time that are left."""
        return float("inf") if self.timeout is None else self.started + self.timeout - perf_counter()

    def expired(self) -> ApiError:
        """What a client hears whose request was not begun in time."""
        return ApiError(
            504,
            f"The request was not begun within its {self.timeout:g} s.",
            code="deadline_exceeded",
            param=HEADER_TIMEOUT,
        )


class Proxy:
    """Forwards calls over one client session.

    `hold_seconds` bounds how long a call waits for a pod; `grace` is the silence before a held stream is begun, and
    `keep_alive` that between comments.
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

    async def forward(self, request: web.Request, backend: ModelPool, call: Call) -> web.StreamResponse:
        """Answer one call. Cancelled when the client goes away, which closes the connection to the pod."""
        answer = ClientResponse(request, call.request_id, call.visit.headers())
        backend.wanted()
        backend.retries.earn()
        arrival = Arrival(lambda: backend.arrived(call.prompt.tokens))
        later = asyncio.get_running_loop().call_later(COMPUTED_SECONDS, arrival.counts)
        try:
            return await self._attempts(request, answer, backend, call, arrival)
        except ApiError as error:
            return await answer.fail(error)
        finally:
            later.cancel()
            arrival.counts()

    async def _attempts(
        self, request: web.Request, answer: ClientResponse, backend: ModelPool, call: Call, arrival: Arrival
    ) -> web.StreamResponse:
        retried, draining = False, set[Replica]()
        usage = call.visit.usage
        while True:
            lease = await self._place(answer, backend, call, arrival)
            try:
                return await self._exchange(request, answer, lease, call, arrival)
            except UnreachedError as unreached:
                pod, drains = lease.upstream, unreached.reason == "draining"
                lease.refused()
                pod.avoid(backend.clock(), draining=drains)
                log.info(
                    "%s did not take the request: %s",
                    pod.endpoint.name,
                    unreached.reason,
                    extra={"request_id": call.request_id},
                )
                # To leave is no fault and the answer cost nothing: of all that is sent to a pod in the moment in which
                # it begins to drain, nothing may be lost. One that says so twice to one request counts as faulty.
                if drains and pod not in draining:
                    draining.add(pod)
                elif retried or not backend.retries.spend():
                    raise backend.unavailable("the replicas did not take the request") from None
                else:
                    retried = True
                self._metrics.retries.labels(label(backend), unreached.reason).inc()
            except asyncio.CancelledError:
                if not call.stream:
                    usage.left(lease.generated)
                raise
            finally:
                lease.settle(usage.prompt if usage.sent else 0, usage.output)
                lease.release()

    async def _place(self, answer: ClientResponse, backend: ModelPool, call: Call, arrival: Arrival) -> Reservation:
        """A place on a pod, at once or after being held."""
        lease = backend.lease(call.prompt, call.terms)
        held = 0.0
        if lease is None:
            arrival.counts()
            begun = perf_counter()
            ticket = backend.hold(len(call.body), call.prompt, call.terms)
            try:
                lease = await self._wait(answer, ticket.granted, backend, call)
            except BaseException:
                backend.withdraw(ticket)
                raise
            held = perf_counter() - begun
        self._metrics.hold_seconds.labels(label(backend)).observe(held)
        self._metrics.routed(lease)
        self._metrics.overhead.observe(max(0.0, perf_counter() - call.started - held))
        return lease

    async def _wait(
        self, answer: ClientResponse, granted: asyncio.Future[Reservation], backend: ModelPool, call: Call
    ) -> Reservation:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_seconds
        patience = self._grace
        while not granted.done():
            left, own = deadline - loop.time(), call.left()
            if own <= 0:
                raise call.expired()
            if left <= 0:
                raise backend.unavailable(f"no replica became free within {self._hold_seconds:g} s")
            left = min(left, own)
            await asyncio.wait([granted], timeout=min(left, patience) if call.stream else left)
            if call.stream and not granted.done() and min(deadline - loop.time(), call.left()) > 0:
                await answer.keep_alive()
                patience = self._keep_alive
        return granted.result()

    async def _exchange(
        self, request: web.Request, answer: ClientResponse, lease: Reservation, call: Call, arrival: Arrival
    ) -> web.StreamResponse:
        if call.left() < headers.MIN_TIMEOUT:
            raise call.expired()
        if not call.stream:
            lease.unseen()
        sent = perf_counter()
        pod = await self._open(request, lease, call)
        complete = False
        try:
            if pod.status == 503 and HEADER_DRAINING in pod.headers:
                raise UnreachedError("draining")
            lease.upstream.trust()
            call.visit.usage.sent = pod.status < 400
            if 400 <= pod.status < 500 and pod.status != 429:
                arrival.refused()
            else:
                arrival.counts()
            if pod.status < 400:
                lease.heard(pod.headers.get(HEADER_PROMPT))
            else:
                lease.refused()
                if pod.status >= 500:
                    fields = {"request_id": call.request_id}
                    log.warning("%s answered %d", lease.upstream.endpoint.name, pod.status, extra=fields)
            with lifeline(pod):
                if pod.content_type == EVENT_STREAM:
                    response = await self._relay(pod, answer, lease, call, sent)
                else:
                    response = await self._whole(pod, answer, lease, call)
            complete = True
            if pod.status < 400:
                lease.completed(call.visit.usage.output)
            usage = call.visit.usage
            self._metrics.answered(lease, prompt=usage.prompt, cached=usage.cached)
            return response
        finally:
            # Closing tells the pod that nobody reads any more; only a connection that was read to its end is kept.
            if complete and pod.content.at_eof():
                pod.release()
            else:
                pod.close()

    async def _open(self, request: web.Request, lease: Reservation, call: Call) -> aiohttp.ClientResponse:
        passed = headers.to_pod(request.headers, call.request_id, call.visit.entry.tenant, call.visit.priority)
        passed[HEADER_WANT_PROMPT] = "1"
        if call.timeout is not None:
            # What a pod would refuse as malformed is none: so late, it ends the request by itself.
            passed[HEADER_TIMEOUT] = f"{max(headers.MIN_TIMEOUT, call.left()):.3f}"
        try:
            return await self._session.post(
                lease.upstream.endpoint.url + call.path,
                data=call.body,
                headers=passed,
                skip_auto_headers=_SKIPPED,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectionError:
            lease.answered(well=False)
            raise UnreachedError("connect") from None
        except aiohttp.ClientError:
            lease.answered(well=False)
            raise ApiError(502, "The replica gave an answer that is not HTTP.", code="bad_gateway") from None

    async def _relay(
        self, pod: aiohttp.ClientResponse, answer: ClientResponse, lease: Reservation, call: Call, sent: float
    ) -> web.StreamResponse:
        """Pass an event stream on as it comes, in whole events. `sent`: when it was asked for."""
        await answer.begin(pod.status, headers.to_client(pod.headers, call.request_id))
        cutter = EventCutter()
        begun, last = False, b""
        while True:
            try:
                chunk = await pod.content.readany()
            except (aiohttp.ClientError, OSError):
                self._metrics.broken.labels(label(lease.backend)).inc()
                log.warning(
                    "%s broke its stream off", lease.upstream.endpoint.name, extra={"request_id": call.request_id}
                )
                lease.answered(well=False)
                return await answer.fail(broken())
            if not chunk:
                break
            if whole := cutter.feed(chunk):
                if not begun and b"data:" in whole:
                    begun = True
                    lease.first_token(perf_counter() - sent)
                last = whole
                lease.progress(call.visit.usage.events(whole))
                await answer.write(whole)
        rest = cutter.rest()
        call.visit.usage.events(rest)
        lease.answered(well=_DONE in last + rest)
        await answer.write(rest)
        return await answer.end()

    async def _whole(
        self, pod: aiohttp.ClientResponse, answer: ClientResponse, lease: Reservation, call: Call
    ) -> web.StreamResponse:
        """Pass an answer on that is not a stream."""
        body, well = bytearray(), False
        try:
            while chunk := await pod.content.readany():
                body += chunk
                if len(body) > MAX_PLAIN_ANSWER:
                    raise ApiError(502, "The replica's answer is too long.", code="bad_gateway")
            well = pod.status < 500
        except (aiohttp.ClientError, OSError):
            raise broken() from None
        except asyncio.CancelledError:
            # The client went away: that says nothing about the pod.
            lease.tally = None
            raise
        finally:
            lease.answered(well=well)
        call.visit.usage.read(bytes(body))
        if not answer.begun:
            passed = headers.to_client(pod.headers, call.request_id)
            passed.update(call.visit.headers())
            return web.Response(status=pod.status, body=bytes(body), headers=passed)
        # The client was told 200 while it was held: the pod's refusal can only be an event.
        if pod.status < 400:
            raise ApiError(502, "The replica did not answer with a stream.", code="bad_gateway")
        await answer.event(bytes(body).replace(b"\n", b" "))
        return await answer.end()


def broken() -> ApiError:
    """What a client hears when a pod goes away in the middle of an answer."""
    return ApiError(502, "The replica that was answering went away; the answer is incomplete.", code="replica_lost")
