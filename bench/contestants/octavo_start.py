"""From the start of `octavo-server` to its first token: python octavo_start.py [FLAG ...], the server's flags."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Any

import uvloop
from octavo_server import Server
from serve import serve
from sse import connect, message


def first_token(flags: list[str]) -> dict[str, Any]:
    """Seconds from a server's start to the first token that a client reads."""
    begin = time.perf_counter()
    server = Server.start(flags)
    try:
        server.ready()
        ready = time.perf_counter() - begin

        async def ask() -> None:
            answer = await connect(server.port, message([1], 1))
            await answer.done
            if answer.completion_tokens != 1:
                sys.exit(f"no first token: {answer.tail!r}")

        uvloop.run(ask())
        seconds = time.perf_counter() - begin
        return {"seconds": round(seconds, 3), "ready_s": round(ready, 3), "cpu_seconds": server.cpu_seconds()}
    finally:
        server.stop()


def main() -> None:
    serve(time.time(), {"octavo": version("octavo")}, {"start": lambda: first_token(sys.argv[1:])})


if __name__ == "__main__":
    main()
