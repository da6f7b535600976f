"""The proxies between client and pods: none, Octavo's gateway, vllm-router, nginx. Each is a process on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.lib.processes import CACHE, free_ports, group, log_file, wait_for

ROUTER = CACHE / "vllm-router" / "bin" / "vllm-router"
NGINX = CACHE / "nginx" / "usr" / "sbin" / "nginx"
START_SECONDS = 60.0

_NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  client_body_buffer_size 1m;
  upstream pods {{ {servers} keepalive 512; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://pods;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""


class MissingError(Exception):
    """A proxy is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's ports; `admin` is the port of its load report."""

    port: int
    admin: int


Command = Callable[[int, Sequence[Pod], Path], list[str]]


@dataclass(slots=True)
class Proxy:
    """A running proxy. `process` is None for the direct connection."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes so far."""
        if self.process is None:
            return 0.0
        parent = psutil.Process(self.process.pid)
        times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
        return sum(each.user + each.system for each in times)


def octavo(port: int, pods: Sequence[Pod], _folder: Path) -> list[str]:
    """Command of Octavo's gateway."""
    urls = ",".join(f"http://127.0.0.1:{pod.port}|{pod.admin}" for pod in pods)
    own = ["--port", str(port), "--admin-port", str(free_ports(1)[0]), "--drain-delay", "0", "--log-level", "warning"]
    return [sys.executable, "-m", "octavo_gateway", "--static-endpoints", f"bench={urls}", *own]


def vllm_router(port: int, pods: Sequence[Pod], _folder: Path) -> list[str]:
    """Command of vllm-router with its default policy, cache_aware."""
    if not ROUTER.exists():
        folder = ROUTER.parents[1]
        raise MissingError(f"python3 -m venv {folder} && {folder}/bin/pip install vllm-router==0.1.17")
    urls = [f"http://127.0.0.1:{pod.port}" for pod in pods]
    own = ["--port", str(port), "--log-level", "error", "--prometheus-port", str(free_ports(1)[0])]
    own += ["--health-check-endpoint", "/readyz", "--worker-startup-check-interval", "1"]
    return [str(ROUTER), "--policy", "cache_aware", "--worker-urls", *urls, *own]


def nginx(port: int, pods: Sequence[Pod], folder: Path) -> list[str]:
    """Command of a plain reverse proxy: nginx, round robin, one worker process."""
    program = str(NGINX) if NGINX.exists() else shutil.which("nginx")
    if program is None:
        raise MissingError(f"cd {CACHE} && apt-get download nginx && dpkg-deb -x nginx_*.deb nginx")
    servers = "".join(f"server 127.0.0.1:{pod.port}; " for pod in pods)
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, servers=servers, port=port))
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


PROXIES: dict[str, Command] = {"octavo": octavo, "vllm-router": vllm_router, "nginx": nginx}


def version(name: str) -> str:
    """Version of a proxy, or the reason why it is not installed."""
    try:
        command = PROXIES[name](0, [], Path(tempfile.gettempdir()))
    except MissingError as missing:
        return f"missing: {missing}"
    if name == "nginx":
        said = subprocess.run([command[0], "-v"], capture_output=True, text=True, check=True).stderr
        return said.partition("/")[2].strip()
    package = "vllm-router" if name == "vllm-router" else "octavo"
    python = str(ROUTER.parent / "python") if name == "vllm-router" else sys.executable
    show = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def running(name: str, pods: Sequence[Pod], cores: set[int]) -> Iterator[Proxy]:
    """A running proxy, pinned to some cores; `direct` is the first pod itself."""
    if name == "direct":
        yield Proxy(pods[0].port)
        return
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder, contextlib.ExitStack() as stack:
        command, log, mine = PROXIES[name](port, pods, Path(folder)), log_file(name), os.sched_getaffinity(0)
        # A child inherits the cores that its parent has at its start; some programs count theirs only then.
        os.sched_setaffinity(0, cores)
        try:
            process = stack.enter_context(group(command, log, 15.0, mode="w"))
        finally:
            os.sched_setaffinity(0, mine)
        wait_for(f"http://127.0.0.1:{port}/v1/models", process, log, START_SECONDS)
        yield Proxy(port, process)
