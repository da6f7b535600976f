"""external.metrics.k8s.io in a few lines: serves Octavo's own figures, read from the operator's metrics, to an HPA."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from demo.cluster import Cluster
from localcluster import pki

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_METRIC = re.compile(rf"/apis/{GROUP}/{VERSION}/namespaces/(?P<namespace>[^/]+)/(?P<metric>[a-z_]+)$")


@contextmanager
def external_metrics(cluster: Cluster, system: str, host: str, folder: Path) -> Iterator[None]:
    """The API while in use: an HTTPS server of this process behind a Service without selector, and its APIService."""
    name = "octavo-metrics"
    keys = pki.create(folder, {"adapter": ("/CN=adapter", [f"DNS:{name}.{cluster.namespace}.svc"])}, {})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(keys.crt("adapter")), str(keys.key("adapter")))
    with ThreadingHTTPServer((host, 0), _handler(cluster, system)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for body in _objects(name, cluster.namespace, host, server.server_port, keys.crt("ca").read_bytes()):
                cluster.run("apply", "-f", "-", stdin=json.dumps(body))
            yield
        finally:
            cluster.run("delete", "apiservice", f"{VERSION}.{GROUP}", "--ignore-not-found")
            server.shutdown()
            thread.join()


def _objects(name: str, namespace: str, host: str, port: int, ca: bytes) -> list[dict[str, object]]:
    metadata = {"name": name, "namespace": namespace}
    ports = [{"name": "https", "port": 443, "targetPort": port}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}}
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {**metadata, "port": 443},
            "caBundle": base64.b64encode(ca).decode(),
        },
    }
    return [service, endpoints, api]


def _handler(cluster: Cluster, system: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = _METRIC.match(url.path)
            if url.path == f"/apis/{GROUP}/{VERSION}":
                head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
                self._answer(200, {**head, "resources": []})
            elif found:
                selector = parse_qs(url.query).get("labelSelector", [""])[0]
                self._answer(200, _values(cluster, system, found["namespace"], found["metric"], selector))
            else:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

        def _answer(self, status: int, body: dict[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler


def _values(cluster: Cluster, system: str, namespace: str, metric: str, selector: str) -> dict[str, object]:
    """What the leading operator says of one LLMDeployment; no item while nobody says anything."""
    labels = dict(part.split("=") for part in selector.split(",") if part)
    line = re.compile(rf'^{metric}{{name="{labels["name"]}",namespace="{namespace}"}} (\S+)$', re.MULTILINE)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {"metricName": metric, "metricLabels": labels, "timestamp": now, "value": f"{round(1000 * float(value))}m"}
        for pod in cluster.items("pods", "app.kubernetes.io/component=operator", system)
        for value in line.findall(_metrics(cluster, system, pod["metadata"]["name"]))
    ]
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


def _metrics(cluster: Cluster, system: str, pod: str) -> str:
    return cluster.run("get", "--raw", f"/api/v1/namespaces/{system}/pods/{pod}:8081/proxy/metrics", check=False)
