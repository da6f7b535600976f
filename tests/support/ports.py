"""Free ports for programs that tests start, safe beside other test processes on the same machine."""

from __future__ import annotations

import functools
import socket

# Below the range that Linux takes ephemeral ports from (32768 and up), and below Kubernetes' NodePorts (30000 and up):
# nobody is given one of these ports between the moment it is found free and the moment a program listens on it.
FIRST, END, BLOCK = 12_000, 30_000, 200
HOST = "127.0.0.1"


def free_port() -> int:
    """A port on loopback that no program listens on, and that no other test process is given."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    return _block().take(count)


class _Block:
    """Ports of this process alone: it keeps the block's first port bound as a claim to the others.

    A claim needs no xdist worker number, so that two test runs at the same time do not meet either, and it ends with
    the process.
    """

    def __init__(self) -> None:
        for first in range(FIRST, END, BLOCK):
            self._claim = socket.socket()
            try:
                self._claim.bind((HOST, first))
            except OSError:
                self._claim.close()
                continue
            self._first, self._next = first + 1, first + 1
            self._end = first + BLOCK
            return
        raise RuntimeError(f"no {BLOCK} free ports in a row from {FIRST} to {END}")

    def take(self, count: int) -> int:
        """The first of `count` free ports, the ones longest unused first."""
        for _ in range(BLOCK):
            first = self._next if self._next + count <= self._end else self._first
            self._next = first + 1
            if all(_is_free(port) for port in range(first, first + count)):
                self._next = first + count
                return first
        raise RuntimeError(f"no {count} free ports in a row from {self._first} to {self._end}")


@functools.cache
def _block() -> _Block:
    return _Block()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
