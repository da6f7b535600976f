"""Reads request bodies: limits the size while reading, and decodes into the type of the endpoint.

A type mismatch is a 400 that names the field, the value found and the valid values. JSON has no NaN or Infinity, and
`true`, `"5"` and `5.0` are no integers: msgspec is strict about both.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request

from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.refusals import explain

MAX_BODY = 8 * 2**20
BODY_SECONDS = 10.0
# An oversized body is read and discarded up to this many limits. If the server closed the connection while the client
# still sends, the client would lose the response.
_DISCARD = 4

Body = TypeVar("Body", bound=msgspec.Struct)


async def read(request: Request, kind: type[Body]) -> Body:
    """Read and decode the body of a request. Raises `ApiError` 415, 413, 408 or 400."""
    return decode(await _read(request), kind)


def decode(data: bytes, kind: type[Body]) -> Body:
    """Decode a body. Raises `ApiError` 400."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}", None, "invalid_json") from None


async def _read(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(
            415, "Send the body as plain JSON, with 'Content-Type: application/json'.", code="unsupported_type"
        )
    too_large = ApiError(
        413, f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", headers={"Connection": "close"}
    )
    declared = request.headers.get("content-length", "0")
    chunks: list[bytes] = []
    size = 0
    too_much = declared.isdigit() and int(declared) > MAX_BODY
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                too_much |= size > MAX_BODY
                if not too_much:
                    chunks.append(chunk)
                elif size > _DISCARD * MAX_BODY:
                    raise too_large
    except TimeoutError:
        if too_much:
            raise too_large from None
        raise ApiError(
            408, f"The body did not arrive within {BODY_SECONDS:g} s.", code="timeout", headers={"Connection": "close"}
        ) from None
    if too_much:
        raise too_large
    return b"".join(chunks)
