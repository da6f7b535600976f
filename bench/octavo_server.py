"""A process of `octavo-server`, as a client of the benchmarks starts and watches it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.request import urlopen

import psutil

READY_SECONDS = 300.0


@dataclass(slots=True)
class Server:
    """A server process and where it listens; `admin` is the port of its load report."""

    process: subprocess.Popen[bytes]
    port: int
    admin: int

    @classmethod
    def start(cls, flags: list[str]) -> Server:
        """Start it; `ready` waits."""
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, admin = int(free.getsockname()[1]), int(other.getsockname()[1])
        own = ["--port", str(port), "--admin-port", str(admin), "--served-model-name", "bench"]
        command = [sys.executable, "-m", "octavo_inference", *flags, *own]
        # Its own lines go to the log: this process' standard output is for measurements.
        return cls(subprocess.Popen(command, stdout=sys.stderr), port, admin)

    def ready(self) -> None:
        """Wait until requests are welcome."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1):
                    return
            except OSError:  # nobody listens yet, or 503
                time.sleep(0.005)
        sys.exit("the server did not become ready")

    def processes(self) -> list[psutil.Process]:
        """The server and its engine."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Of all its processes so far."""
        return sum(t.user + t.system for t in (p.cpu_times() for p in self.processes()))

    def resident(self) -> int:
        """Bytes in RAM of all its processes."""
        return sum(p.memory_info().rss for p in self.processes())

    def stop(self) -> None:
        """Drain and end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
