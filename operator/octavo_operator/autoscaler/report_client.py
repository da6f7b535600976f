"""Fetches one load report over HTTP."""

from __future__ import annotations

import aiohttp

# The size limit of a response: a report with the in-flight tokens of thousands of pods is smaller.
LIMIT_BYTES = 1 << 20


async def fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """The body at a URL. Raises OSError if the request fails or the body is too large, TimeoutError on a timeout."""
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise OSError(f"{url} returned status {response.status}")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > LIMIT_BYTES:
                    raise OSError(f"{url} returned more than {LIMIT_BYTES} bytes")
            return bytes(body)
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error
