"""Starts and monitors an `octavo-server` process for the benchmarks."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import IO, Any

import psutil

from bench.lib.processes import ROOT, free_ports, wait_for

READY_SECONDS = 300.0


@dataclass(slots=True)
class Server:
    """A server process and its port; `admin` is the port of its load report."""

    process: subprocess.Popen[bytes]
    port: int
    admin: int

    @classmethod
    def start(cls, flags: list[str], module: str = "octavo_inference", output: IO[Any] | None = None) -> Server:
        """Start the server; `ready` waits. Its log goes to `output`, by default to standard error."""
        port, admin = free_ports(2)
        own = ["--port", str(port), "--admin-port", str(admin), "--served-model-name", "bench"]
        command = [sys.executable, "-m", module, *flags, *own]
        process = subprocess.Popen(command, stdout=output or sys.stderr, stderr=output, cwd=ROOT)
        return cls(process, port, admin)

    def ready(self) -> None:
        """Wait until the server accepts requests. RuntimeError when it does not; its log has the cause."""
        wait_for(f"http://127.0.0.1:{self.port}/readyz", self.process, None, READY_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """Processes of the server, with its engine."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(t.user + t.system for t in (p.cpu_times() for p in self.processes()))

    def resident(self) -> int:
        """Resident bytes of all its processes."""
        return sum(p.memory_info().rss for p in self.processes())

    def stop(self) -> None:
        """Drain and terminate."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
