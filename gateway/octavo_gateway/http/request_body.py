"""Reads the body of a request within the bounds of its route."""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web

from octavo_gateway.api.errors import ApiError

BODY_SECONDS = 60.0


async def read_body(request: web.Request, limit: int, seconds: float) -> bytes:
    """The body of a request with JSON.

    Raises `ApiError` 415 for another type, 408 if it arrives too slowly, and aiohttp's 413 above `limit` bytes.
    """
    if request.content_type != "application/json":
        raise ApiError(415, f"Content-Type is {request.content_type}; send application/json")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "a compressed body is not accepted; send it without Content-Encoding")
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
    await _answer_expectation(request)
    body = await _read(request, seconds)
    if len(body) > limit:
        raise web.HTTPRequestEntityTooLarge(limit, len(body))
    return body


async def later(_: web.Request) -> None:
    """Delays `100 Continue` until the request is admitted: `read_body` sends it."""


async def _answer_expectation(request: web.Request) -> None:
    expect = request.headers.get("Expect")
    if expect is not None and request.version >= HttpVersion11:
        if expect.lower() != "100-continue":
            raise ApiError(417, "the only expectation that can be met is 100-continue")
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # An interim response does not count as output: the final one may still become an error.
        request.writer.output_size = 0


async def _read(request: web.Request, seconds: float) -> bytes:
    if request.content.is_eof():  # Most bodies arrive with their heads.
        return await request.read()
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body was not complete within {seconds:g} s", close=True) from None
