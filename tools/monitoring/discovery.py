"""Tells a Prometheus what to scrape: Octavo's running pods, as its HTTP service discovery asks for them.

Debian's Prometheus is built without discovery of Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from localcluster.kube import Api

# As charts/octavo/templates/monitoring/podmonitor.yaml has them: the same pods, ports and labels, whoever scrapes.
_PODS = "/api/v1/pods?labelSelector=app.kubernetes.io%2Fpart-of%3Doctavo"
_PORTS = ("admin", "http")
_MODEL = "octavo.dev/llmdeployment"


def targets(pods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Target groups, one per metrics port of a running pod."""
    found = []
    for pod in pods:
        address, meta = pod["status"].get("podIP"), pod["metadata"]
        if pod["status"].get("phase") != "Running" or not address:
            continue
        labels = {"namespace": meta["namespace"], "pod": meta["name"]}
        if model := meta.get("labels", {}).get(_MODEL):
            labels["llmdeployment"] = model
        ports = (port for container in pod["spec"]["containers"] for port in container.get("ports", []))
        found += [
            {"targets": [f"{address}:{port['containerPort']}"], "labels": labels}
            for port in ports
            if port.get("name") in _PORTS
        ]
    return found


@contextmanager
def discovery(api: Api) -> Iterator[str]:
    """URL that answers with the target groups of a cluster while in use. 503, and the last answer stays, without it."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                body, status = json.dumps(targets(api.get(_PODS)["items"])).encode(), 200
            except OSError as error:
                body, status = str(error).encode(), 503
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - so it is called
            """Nobody wants to know."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
