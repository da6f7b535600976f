"""Ends a child process when its parent ends."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable


def live_with(connection: socket.socket, last: Callable[[], object] = lambda: None) -> None:
    """End this process when the other end of `connection` closes, also while it hangs, after calling `last`."""

    def wait() -> None:
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        last()
        os._exit(0)

    threading.Thread(target=wait, name="octavo-life", daemon=True).start()
