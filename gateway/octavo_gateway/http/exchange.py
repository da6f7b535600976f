"""The exchange of one request with one replica: sends it, forwards the answer, and records how it ended.

Bytes are forwarded unchanged. A broken stream ends with an error event, never as if it were complete.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from time import perf_counter

import aiohttp
from aiohttp import web
from yarl import URL

from octavo_gateway.api.answer_usage import MARKS
from octavo_gateway.api.errors import ApiError
from octavo_gateway.http import headers
from octavo_gateway.http.call import Call
from octavo_gateway.http.client_response import EVENT_STREAM, ClientResponse
from octavo_gateway.http.sse import EventCutter
from octavo_gateway.http.stream_watchdog import fail_on_close
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.arrivals import Arrival
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_protocol.names import HEADER_DRAINING, HEADER_PROMPT, HEADER_TIMEOUT, HEADER_WANT_PROMPT
from octavo_protocol.routes import UsageForm

log = logging.getLogger(__name__)

# An answer without a stream is read whole before its first byte is forwarded, so that a broken one can become a 502.
MAX_PLAIN_ANSWER = 64 * 1024 * 1024
_SKIPPED = ("User-Agent", "Accept-Encoding")
_SEQUENCE = b'"sequence_number":'
_NUMBER = re.compile(rb"\s{0,8}(\d{1,9})")


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange. `request` is the client's, `answer` the response to it. `ending`: as known so far."""

    session: aiohttp.ClientSession
    metrics: GatewayMetrics
    pool: ModelPool
    reservation: Reservation
    call: Call
    request: web.Request
    answer: ClientResponse
    arrival: Arrival
    ending: Ending = Ending.NOT_SENT
    _learned: bool = False

    def outcome(self) -> RequestOutcome:
        """The outcome for the pool to settle, after `run`."""
        usage = self.call.grant.usage
        return RequestOutcome(self.reservation, self.ending, usage.prompt if usage.sent else 0, usage.output)

    async def run(self) -> web.StreamResponse | None:
        """The answer; None if no part of one came and another replica may be tried.

        Raises `ApiError` if the replica's answer is invalid, or at the deadline.
        """
        if self.call.left() < headers.MIN_TIMEOUT:
            raise self.call.expired()
        self.ending = Ending.ABANDONED
        if self.reservation.in_engine:
            self.reservation.sent(streamed=self.call.stream)
        sent = perf_counter()
        replica = await self._open()
        if replica is None:
            return None
        complete = False
        try:
            if replica.status == 503 and HEADER_DRAINING in replica.headers:
                self.ending = Ending.DRAINING
                return None
            self._began(replica)
            with fail_on_close(replica):
                if replica.content_type == EVENT_STREAM:
                    response = await self._relay(replica, sent)
                else:
                    response = await self._whole(replica)
            complete = True
            usage = self.call.grant.usage
            self.metrics.answered(self.call.model, self.reservation, prompt=usage.prompt, cached=usage.cached)
            return response
        finally:
            # A closed connection makes the replica stop; only a connection read to its end is reused.
            if complete and replica.content.at_eof():
                replica.release()
            else:
                replica.close()

    async def _open(self) -> aiohttp.ClientResponse | None:
        """Send the request; returns the replica's answer with its head read, None if the replica is unreachable."""
        call, grant = self.call, self.call.grant
        passed = headers.to_pod(self.request.headers, call.request_id, grant.entry.tenant, grant.priority)
        if call.route.in_engine:
            passed[HEADER_WANT_PROMPT] = "1"
        if call.timeout is not None:
            # The replica refuses a smaller value as malformed; with this one the request reaches its deadline there.
            passed[HEADER_TIMEOUT] = f"{max(headers.MIN_TIMEOUT, call.left()):.3f}"
        try:
            return await self.session.request(
                call.route.method,
                URL(self.reservation.replica.url + call.path, encoded=True),
                data=call.body or None,
                headers=passed,
                skip_auto_headers=_SKIPPED,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectionError:
            self.ending = Ending.UNREACHED
            return None
        except aiohttp.ClientError:
            self.ending = Ending.FAILED
            raise ApiError(502, "The replica gave an answer that is not HTTP.", code="bad_gateway") from None

    def _began(self, replica: aiohttp.ClientResponse) -> None:
        """Record the head of the answer."""
        status = replica.status
        self.call.grant.usage.sent = status < 400
        if 400 <= status < 500 and status != 429:
            self.arrival.refused()
        else:
            self.arrival.counts()
        self.pool.answered(self.reservation, replica.headers.get(HEADER_PROMPT) if status < 400 else None)
        if status >= 400:
            self.ending = Ending.REFUSED if status < 500 else Ending.FAILED
        if status >= 500:
            fields = {"request_id": self.call.request_id}
            log.warning("%s answered %d", self.reservation.replica.endpoint.name, status, extra=fields)

    def _ended(self, replica: aiohttp.ClientResponse, ending: Ending) -> None:
        """Record the end of the body; for an error the status has already set the ending."""
        if replica.status < 400:
            self.ending = ending

    async def _relay(self, replica: aiohttp.ClientResponse, sent: float) -> web.StreamResponse:
        """Forward an event stream as it arrives, in whole events. `sent`: when the request was sent."""
        answer, usage, request_id = self.answer, self.call.grant.usage, self.call.request_id
        marks = MARKS[usage.form]
        await answer.begin(replica.status, headers.to_client(replica.headers, request_id))
        cutter = EventCutter()
        begun, last = False, b""
        while True:
            try:
                chunk = await replica.content.readany()
            except (aiohttp.ClientError, OSError):
                self._ended(replica, Ending.BROKEN)
                self.metrics.broken.labels(self.call.model).inc()
                name = self.reservation.replica.endpoint.name
                log.warning("%s aborted its stream", name, extra={"request_id": request_id})
                return await answer.fail(broken(), next_sequence(last))
            if not chunk:
                break
            if whole := cutter.feed(chunk):
                if not begun and marks.began in whole:
                    begun = True
                    self.reservation.first_token(perf_counter() - sent)
                last = whole
                self.reservation.progress(usage.events(whole))
                self._learn_id()
                await answer.write(whole)
        rest = cutter.rest()
        usage.events(rest)
        complete = usage.form is UsageForm.NONE or any(mark in last + rest for mark in marks.complete)
        self._ended(replica, Ending.FINISHED if complete else Ending.BROKEN)
        await answer.write(rest)
        return await answer.end()

    async def _whole(self, replica: aiohttp.ClientResponse) -> web.StreamResponse:
        """Forward an answer that is not a stream."""
        call, answer = self.call, self.answer
        body = bytearray()
        try:
            while chunk := await replica.content.readany():
                body += chunk
                if len(body) > MAX_PLAIN_ANSWER:
                    self._ended(replica, Ending.BROKEN)
                    raise ApiError(502, "The replica's answer is too long.", code="bad_gateway")
        except (aiohttp.ClientError, OSError):
            self._ended(replica, Ending.BROKEN)
            raise broken() from None
        self._ended(replica, Ending.FINISHED)
        call.grant.usage.read(bytes(body))
        self._learn_id()
        if not answer.begun:
            passed = headers.to_client(replica.headers, call.request_id)
            passed.update(call.grant.headers())
            return web.Response(status=replica.status, body=bytes(body), headers=passed)
        # The client got status 200 while its request was held: the replica's refusal can only be an event.
        if replica.status < 400:
            raise ApiError(502, "The replica did not answer with a stream.", code="bad_gateway")
        await answer.refuse(replica.status, bytes(body))
        return await answer.end()

    def _learn_id(self) -> None:
        """Remember once that the replica stores the response with the answer's id."""
        if self.call.learn is not None and not self._learned and self.call.grant.usage.answer_id:
            self._learned = True
            self.call.learn(self.call.grant.usage.answer_id, self.reservation.replica)


def next_sequence(events: bytes) -> int:
    """The number of the next event in a stream of the Responses API; 0 before the first event."""
    found = events.rfind(_SEQUENCE)
    number = _NUMBER.match(events, found + len(_SEQUENCE)) if found >= 0 else None
    return int(number[1]) + 1 if number else 0


def broken() -> ApiError:
    """The error if the replica disappears in the middle of its answer."""
    return ApiError(502, "The replica that was answering went away; the answer is incomplete.", code="replica_lost")
