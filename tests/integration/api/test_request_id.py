"""One request in the logs of gateway, API process and engine, by one field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
from tests.support.ports import free_ports
from tests.support.servers import until_ready

from .conftest import Start

ID = "follow-me-1"


def lines(log: Path) -> list[dict[str, object]]:
    """The log's lines about the request."""
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line.get("request_id") == ID]


def test_a_failed_request_is_found_by_its_id_in_every_process(start: Start, tmp_path: Path) -> None:
    server = start("--log-format", "json", environment={"OCTAVO_FAILPOINTS": "engine.step:raise@5"})
    port = free_ports(2)
    log = tmp_path / "gateway.log"
    static = f"smollm2={str(server.api.base_url).rstrip('/')}"
    command = [sys.executable, "-m", "octavo_gateway", "--port", str(port), "--admin-port", str(port + 1)]
    with log.open("wb") as out, subprocess.Popen([*command, "--static-endpoints", static], stderr=out) as gateway:
        try:
            url = f"http://127.0.0.1:{port}"
            until_ready(gateway, url, log)
            answer = httpx.post(
                f"{url}/v1/chat/completions", json=server.body(), headers={"X-Request-Id": ID}, timeout=60
            )
        finally:
            gateway.terminate()
    assert answer.status_code == 500
    assert answer.headers["X-Request-Id"] == ID
    (told,) = lines(log)
    assert (told["logger"], told["level"]) == ("octavo_gateway.http.exchange", "warning")
    processes = {line["logger"]: line for line in lines(server.log_file)}
    assert processes["octavo_inference.core.engine"]["message"] == "a request ended with the step that failed"
    assert {line.get("status") for line in processes.values()} == {None, 500}
