"""Starting the engine process. Imports little: it runs before anything large is imported, so that both load at once."""

from __future__ import annotations

import socket
import subprocess
import sys

from octavo_inference.ipc import Start, encode_frame
from octavo_inference.settings import Settings

_SOCKET_BUFFER = 1 << 20


class EngineProcess:
    """A child that has begun to load, and our end of the socket pair to it."""

    def __init__(self, settings: Settings) -> None:
        self.connection, theirs = socket.socketpair()
        for end in (self.connection, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        # -P: the working directory's files are not modules.
        command = [sys.executable, "-P", "-m", "octavo_inference.engine_process", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.connection.sendall(encode_frame(Start(settings=settings)))
