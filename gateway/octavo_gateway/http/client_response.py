"""The response to one client: not begun, begun by the gateway while the request is held, or the pod's own."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from multidict import CIMultiDict

from octavo_gateway.api.errors import ApiError, ErrorForm, error_form
from octavo_protocol.names import HEADER_REQUEST_ID
from octavo_protocol.routes import UsageForm, surface_of

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"


def form_of(request: web.Request, usage: UsageForm = UsageForm.NONE) -> ErrorForm:
    """The form of errors for a request. `usage`: that of its route."""
    return error_form(surface_of(request.path, anthropic_version="anthropic-version" in request.headers), usage)


def error_response(error: ApiError, request_id: str, form: ErrorForm = ErrorForm.OPENAI) -> web.Response:
    """The HTTP response of an error: error object, status and Retry-After."""
    headers = {HEADER_REQUEST_ID: request_id, **form.headers(request_id), **error.headers}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    body = form.body(error, request_id)
    response = web.Response(status=error.status, body=body, headers=headers, content_type="application/json")
    if error.close:
        response.force_close()
    return response


class ClientResponse:
    """The response to one client, from its first byte to its end.

    `headers` are added to the pod's. `form`: of errors.
    """

    def __init__(
        self,
        request: web.Request,
        request_id: str,
        headers: Mapping[str, str] | None = None,
        form: ErrorForm = ErrorForm.OPENAI,
    ) -> None:
        self._form = form
        self._request = request
        self._headers = headers or {}
        self._request_id = request_id
        self._stream: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """True if status and headers have been sent."""
        return self._stream is not None

    async def keep_alive(self) -> None:
        """Send a keep-alive comment to a client that waits for a stream; begins the stream."""
        if self._stream is None:
            await self.begin(200, CIMultiDict({"Content-Type": EVENT_STREAM, "Cache-Control": "no-cache"}))
        await self.write(KEEP_ALIVE)

    async def begin(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send status and headers, unless a keep-alive has already sent them."""
        if self._stream is None:
            headers[HEADER_REQUEST_ID] = self._request_id
            headers.update(self._form.headers(self._request_id))
            headers.update(self._headers)
            self._stream = web.StreamResponse(status=status, headers=headers)
            await self._stream.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send bytes of the stream."""
        if self._stream is not None:
            await self._stream.write(data)

    async def end(self) -> web.StreamResponse:
        """Finish the stream."""
        if self._stream is None:
            raise web.HTTPInternalServerError
        await self._stream.write_eof()
        return self._stream

    async def refuse(self, status: int, body: bytes) -> None:
        """Send the body of a replica's error answer as an event of the stream."""
        await self.write(self._form.refusal_event(status, body))

    async def fail(self, error: ApiError, sequence: int = 0) -> web.StreamResponse:
        """Answer with an error: a response if none has begun, else an event and the end of the connection.

        `sequence`: number of the event in a stream of the Responses API.
        """
        if self._stream is None:
            return error_response(error, self._request_id, self._form)
        await self.write(self._form.event(error, self._request_id, sequence))
        self._stream.force_close()
        return await self.end()
