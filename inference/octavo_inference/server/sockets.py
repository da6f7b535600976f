"""Listening sockets. Imports little: a port in use is an error before anything is loaded."""

from __future__ import annotations

import socket

from octavo_inference.common.errors import OctavoError
from octavo_protocol.server_settings import ServerSettings


class Sockets:
    """The bound sockets of the API and the admin port. Raises `OctavoError` with the flag to change."""

    def __init__(self, settings: ServerSettings) -> None:
        self.api = _bind(settings.host, settings.port, "--port")
        self.admin = _bind(settings.admin_host, settings.admin_port, "--admin-port")

    @property
    def url(self) -> str:
        """URL of the API for a client on this machine."""
        host, port = self.api.getsockname()[:2]
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 -- compared, not bound
        return f"http://{anywhere.get(host, host)}:{port}"


def _bind(host: str, port: int, flag: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OctavoError(f"{flag}: cannot listen on {host}:{port}: {reason}; use another") from None
    return listening
