"""Prometheus from Debian's package, as a child process on loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from toolbox.debian import debian_program

PACKAGE = "prometheus"
_START_SECONDS = 60.0
_SCRAPE = "2s"


class QueryError(Exception):
    """Prometheus rejected a query; the message is that of Prometheus."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The HTTP API of a running Prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of `expression` now."""
        return list(self._get("query", query=expression)["result"])

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The matrix of `expression`; times are Unix seconds."""
        return list(self._get("query_range", query=expression, start=start, end=end, step=step)["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"] if each["state"] == "firing"}

    def rules(self) -> dict[str, dict[str, Any]]:
        """Rules by name, with their health."""
        return {rule["name"]: rule for group in self._get("rules")["groups"] for rule in group["rules"]}

    def metadata(self) -> set[str]:
        """Names of all metrics that scraped pods declare, including those without a value."""
        return set(self._get("metadata"))

    def targets(self) -> list[dict[str, Any]]:
        """The active targets, each with `health` and `lastError`."""
        return list(self._get("targets", state="active")["activeTargets"])

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            body = json.load(error)
        if body["status"] != "success":
            raise QueryError(f"{parameters.get('query', path)}: {body['error']}")
        return body["data"]


def configuration(targets: str, rules: Path) -> dict[str, Any]:
    """A configuration that scrapes the targets of the HTTP discovery at URL `targets`; `rules`: alerting rules file."""
    job = {
        "job_name": "octavo",
        # The operator's labels `namespace` and `name` are those of the LLMDeployment, not of the operator's pod.
        "honor_labels": True,
        "http_sd_configs": [{"url": targets, "refresh_interval": _SCRAPE}],
    }
    every = {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE}
    return {"global": every, "rule_files": [str(rules)], "scrape_configs": [job]}


@contextmanager
def prometheus(folder: Path, targets: str, rules: Path) -> Iterator[Prometheus]:
    """A Prometheus with its data in `folder`, for the block.

    Raises ToolError if the program is missing, TimeoutError if it does not start.
    """
    config, log = folder / "prometheus.yaml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump(configuration(targets, rules)), encoding="utf-8")
    address = f"127.0.0.1:{_free_port()}"
    command = [
        # Prometheus dies with its parent process, even if that is killed.
        *("setpriv", "--pdeathsig", "KILL", "--"),
        str(debian_program("prometheus", PACKAGE)),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process:
        try:
            _wait(f"http://{address}/-/ready", process, log)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool of the same package."""
    command = [str(debian_program("promtool", PACKAGE)), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own
                return
        except OSError:
            time.sleep(0.2)
    process.terminate()
    raise TimeoutError(f"Prometheus did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
