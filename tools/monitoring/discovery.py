"""HTTP service discovery for Prometheus: the targets are Octavo's running pods.

Debian's Prometheus is built without Kubernetes service discovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from localcluster.kube import Api

# The same pods, ports and labels as in charts/octavo/templates/monitoring/podmonitor.yaml.
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
    """URL of the target groups of a cluster, served during the block.

    503 if the API server does not respond: Prometheus then keeps the last targets.
    """

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

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """No access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
