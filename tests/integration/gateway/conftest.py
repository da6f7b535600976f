"""A gateway process, and pods behind it that keep what reached them byte for byte."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.ports import free_port, free_ports
from tests.support.servers import until_ready

KEY = "alpha"
ANSWER = b'{"object":"chat.completion"}'


@dataclass
class Request:
    """One request as it reached a pod."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class RecordingPod:
    """A pod of plain sockets, so that no library tidies up what it sees. `junk`: bytes that were no request."""

    extra: bytes = b""
    seen: list[Request] = field(default_factory=list)
    junk: list[bytes] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with connection:
            while chunk := connection.recv(65536):
                data += chunk
                while b"\r\n\r\n" in data:
                    head, _, rest = data.partition(b"\r\n\r\n")
                    line, *lines = head.decode("latin-1").split("\r\n")
                    headers = [(name, value.strip()) for name, _, value in (text.partition(":") for text in lines)]
                    lengths = [value for name, value in headers if name.lower() == "content-length"]
                    if len(lengths) != 1 or not line.startswith("POST /v1/"):
                        self.junk.append(data)
                        return
                    if len(rest) < int(lengths[0]):
                        break
                    self.seen.append(Request(line, headers, rest[: int(lengths[0])]))
                    data = rest[int(lengths[0]) :]
                    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + self.extra
                    connection.sendall(answer + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
        if data:
            self.junk.append(data)


@dataclass
class Gateway:
    """A gateway process on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def report(self) -> dict[str, object]:
        with urlopen(f"http://127.0.0.1:{self.admin_port}/v1/octavo/load", timeout=10) as response:
            found: dict[str, object] = json.load(response)
        return found

    def resident(self) -> int:
        """Bytes in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def logged(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


StartGateway = Callable[..., Gateway]


@pytest.fixture(scope="module")
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """Starts gateways for the model `m` at some pods; they end with the module."""
    started: list[Gateway] = []

    def start(*arguments: str, pods: list[str], admin_port: int = 0) -> Gateway:
        port, admin = free_port(), admin_port or free_ports(8)
        command = [sys.executable, "-m", "octavo_gateway", "--port", str(port), "--admin-port", str(admin)]
        command += ["--static-endpoints", "m=" + ",".join(pods), *arguments]
        log = tmp_path_factory.mktemp("gateway") / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        started.append(Gateway(process, port, admin, log))
        until_ready(process, started[-1].url, log)
        return started[-1]

    yield start
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
        gateway.process.wait()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"{KEY}\n")
    return path
