"""Reads request bodies: limits the size while reading, and decodes into the type of the endpoint.

A type mismatch is a 400 that names the field, the value found and the valid values. JSON has no NaN or Infinity, and
`true`, `"5"` and `5.0` are no integers: msgspec is strict about both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo_inference.server.errors import ApiError, client_gone, intake_full, invalid
from octavo_inference.server.http import RESERVATION, until_disconnect
from octavo_inference.server.intake import LARGE_BODY, BodyReservation
from octavo_inference.server.refusals import explain
from octavo_protocol.routes import BODY_LIMIT

MAX_BODY = BODY_LIMIT
BODY_SECONDS = 10.0
# A refused body is read and discarded up to this many limits. If the server closed the connection while the client
# still sends, the client would lose the response.
_DISCARD = 4

Body = TypeVar("Body", bound=msgspec.Struct)


async def read(request: Request, kind: type[Body], check: Callable[[bytearray], None] = lambda _: None) -> Body:
    """Read and decode the body of a request. Raises `ApiError` 415, 413, 408, 499, 503 or 400.

    `check` sees the body before it is decoded, and may raise `ApiError`, too.
    """
    data = await _read(request)
    check(data)
    if len(data) >= LARGE_BODY and not await until_disconnect(request.receive, _reservation(request).enter()):
        raise client_gone()
    return decode(data, kind)


def decode(data: bytes | bytearray, kind: type[Body]) -> Body:
    """Decode a body. Raises `ApiError` 400."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}", None, "invalid_json") from None


async def _read(request: Request) -> bytearray:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(
            415, "Send the body as plain JSON, with 'Content-Type: application/json'.", code="unsupported_type"
        )
    declared = request.headers.get("content-length", "0")
    reservation = _reservation(request)
    data = bytearray()
    size = 0
    # A function, not an error: an error that is raised refers to this frame and would keep the last chunk with it.
    refusal = _too_large if declared.isdigit() and int(declared) > MAX_BODY else None
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if refusal is None and size > MAX_BODY:
                    refusal = _too_large
                elif refusal is None and not reservation.grow(len(chunk)):
                    refusal = intake_full
                if refusal is None:
                    data += chunk
                    continue
                data.clear()
                reservation.release()
                if size > _DISCARD * MAX_BODY:
                    break
    except ClientDisconnect:
        raise client_gone() from None
    except TimeoutError:
        if refusal is None:
            raise ApiError(
                408,
                f"The body did not arrive within {BODY_SECONDS:g} s.",
                code="timeout",
                headers={"Connection": "close"},
            ) from None
    if refusal is not None:
        raise refusal()
    return data


def _too_large() -> ApiError:
    return ApiError(
        413, f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", headers={"Connection": "close"}
    )


def _reservation(request: Request) -> BodyReservation:
    found: BodyReservation = request.scope[RESERVATION]
    return found
