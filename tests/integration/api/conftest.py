"""`octavo-server` as a user starts it, with the model from its package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.native import require_native
from tests.support.ports import free_port
from tests.support.servers import until_ready

MODEL = "smollm2"
# Interpreted kernels, beside tests of a cluster that take all processors: minutes.
START_SECONDS = 300


@dataclass
class Running:
    """A server process. `api` and `admin` are HTTP clients of its two ports."""

    process: subprocess.Popen[bytes]
    log_file: Path
    api: httpx.Client
    admin: httpx.Client

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        return self.child("octavo_inference.engine.process")

    def child(self, module: str) -> psutil.Process:
        """The child process that runs a module."""
        (child,) = (found for found in psutil.Process(self.process.pid).children() if module in found.cmdline())
        return child

    def chat(self, content: str = "Name the capital of France.", **fields: object) -> dict:
        response = self.api.post("/v1/chat/completions", json=self.body(content, **fields))
        assert response.status_code == 200, response.text
        return response.json()

    @staticmethod
    def body(content: str = "Name the capital of France.", **fields: object) -> dict:
        greedy = {"model": MODEL, "temperature": 0, "max_tokens": 24}
        return greedy | {"messages": [{"role": "user", "content": content}]} | fields

    def load(self) -> dict:
        return self.admin.get("/v1/octavo/load").json()


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "octavo_inference", *flags]


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    require_native()
    servers: list[Running] = []

    def begin(*flags: str, environment: dict[str, str] | None = None, wait: bool = True) -> Running:
        ports = free_port(), free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        sizes = ["--max-model-len", "1024", "--kv-memory", "128Mi"]
        arguments = command("--port", str(ports[0]), "--admin-port", str(ports[1]), *sizes, *flags)
        with log.open("wb") as out:
            process = subprocess.Popen(arguments, stderr=out, env=os.environ | (environment or {}))
        clients = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) for port in ports]
        server = Running(process, log, *clients)
        servers.append(server)
        if wait:
            until_ready(process, str(server.api.base_url).rstrip("/"), log, START_SECONDS)
        return server

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start()


@pytest.fixture
def counters(server: Running) -> Callable[[], dict[str, float]]:
    def read() -> dict[str, float]:
        lines = [line for line in server.admin.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {re.sub(r"\{.*\}", "", line.rsplit(" ", 1)[0]): float(line.rsplit(" ", 1)[1]) for line in lines}

    return read
