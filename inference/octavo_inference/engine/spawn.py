"""Starts the engine process. Imports little and runs before any large import, so both processes load in parallel."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo_protocol.server_settings import ServerSettings

_SOCKET_BUFFER = 1 << 20


class EngineProcess:
    """A child process that runs its imports and waits for `load`, and this side of the socket pair to it."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        for end in (self.connection, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        # -P: do not import modules from the working directory.
        command = [sys.executable, "-P", "-m", "octavo_inference.engine.process", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def load(self, settings: ServerSettings) -> None:
        """Send the settings of the engine to load."""
        from octavo_inference.common.framing import encode_frame  # noqa: PLC0415 -- after the child has started
        from octavo_inference.engine.ipc import Start  # noqa: PLC0415 -- after the child has started

        self.connection.sendall(encode_frame(Start(settings=settings)))

    def abandon(self) -> None:
        """End the child before `load`: no engine is needed."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
