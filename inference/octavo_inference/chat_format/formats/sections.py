"""A section of calls: each call between two markers, and a marker behind the last one."""

from __future__ import annotations

from collections.abc import Callable

from octavo_inference.chat_format.call_parser import Block
from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.readers import Reader, literal, one_of, space


def section(call: Callable[[Calls, str], Reader[str]], begin: str, end: str, last: str) -> Block:
    """A block of calls, each read by `call` between `begin` and `end`, up to the marker `last`."""

    def block(calls: Calls, _: str) -> Reader[str]:
        at = yield
        while True:
            at = yield from space(at)
            marker, at = yield from one_of((begin, last), at)
            if marker == last:
                return at
            at = yield from call(calls, at)
            at = yield from space(at)
            at = yield from literal(end, at)

    return block
