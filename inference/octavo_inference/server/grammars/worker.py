"""The grammar process: `python -m octavo_inference.server.grammars.worker FD`, started by `process`.

A grammar may take any time and memory. Here both are bounded: the kernel ends this process at `CPU_SECONDS` of one
trial by SIGPROF, and memory beyond `MEMORY` makes an allocation fail, which ends it by SIGABRT.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec
from tokenizers import Tokenizer

from octavo_inference.common.allocator import trim
from octavo_inference.common.framing import FrameReader, encode_frame
from octavo_inference.common.parent_watchdog import live_with
from octavo_inference.grammar.matcher import Vocabulary
from octavo_inference.server.grammars.messages import ModelTokens, Tried, Try
from octavo_inference.server.grammars.trial import trial

CPU_SECONDS = 2.0
MEMORY = 512 * 2**20
"""Bytes that grammars may use in addition to the model's tokens."""
# CPU time of the engine is worth more, as with the API process.
_NICENESS = 10
_RECEIVE_BYTES = 1 << 20


def main() -> NoReturn:
    """Entry point."""
    # The API process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    connection = socket.socket(fileno=int(sys.argv[1]))
    live_with(connection)
    frames = _frames(connection)
    begin = msgspec.msgpack.decode(next(frames), type=ModelTokens)
    attempt = _attempts(begin)
    _bound_memory()
    for frame in frames:
        connection.sendall(encode_frame(_tried(attempt, msgspec.msgpack.decode(frame, type=Try))))
        # What a grammar has used goes back to the system: the memory plan counts on it.
        trim()
    os._exit(0)


def _attempts(begin: ModelTokens) -> Callable[[str], str | None]:
    """What tries a grammar for the model's tokens and returns why it cannot be used, or None."""
    tokenizer = Tokenizer.from_str(begin.tokenizer)
    try:
        vocabulary = Vocabulary(tokenizer, begin.size, begin.ends)
    except Exception as error:  # noqa: BLE001 -- llguidance does not know every tokenizer
        problem = f"this model cannot follow grammars, because its tokenizer is not supported: {error}"
        return lambda _: problem
    last = [tokenizer.encode(text, add_special_tokens=False).ids[-1:] for text in ('"', "}", "]", ", ")]
    closing = [token for ids in last for token in ids]
    return lambda grammar: trial(vocabulary, begin.size, closing, grammar, time.thread_time)


def _tried(attempt: Callable[[str], str | None], wanted: Try) -> Tried:
    begun = time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        error = attempt(wanted.grammar)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Tried(seconds=time.perf_counter() - begun, error=error)


def _frames(connection: socket.socket) -> Iterator[bytes]:
    reader = FrameReader()
    while data := connection.recv(_RECEIVE_BYTES):
        yield from reader.feed(data)


def _bound_memory() -> None:
    """Bound what is allocated from now on, without a core dump or a message where it ends this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 -- one read of a file of the kernel
        mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    main()
