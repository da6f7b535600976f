"""Starting the engine process. Imports little: it runs before anything large is imported, so that both load at once."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo_protocol.server_settings import ServerSettings

_SOCKET_BUFFER = 1 << 20


class EngineProcess:
    """A child that imports what it needs and waits for `load`, and our end of the socket pair to it."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        for end in (self.connection, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        # -P: the working directory's files are not modules.
        command = [sys.executable, "-P", "-m", "octavo_inference.engine.process", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def load(self, settings: ServerSettings) -> None:
        """Tell it what to load."""
        from octavo_inference.common.framing import encode_frame  # noqa: PLC0415 -- after the child is on its way
        from octavo_inference.engine.ipc import Start  # noqa: PLC0415 -- after the child is on its way

        self.connection.sendall(encode_frame(Start(settings=settings)))

    def abandon(self) -> None:
        """End it before `load`: there will be nothing to load."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
