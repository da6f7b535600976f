"""A hub on the loopback, that answers as hubs do: and fails as they do."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee"
WEIGHTS = bytes(range(256)) * 4000


class FakeHub:
    """A hub with one model, whose files lie in a storage on another port."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {
            "config.json": b"{}",
            "tokenizer.json": b'{"a": 1}',
            "model.safetensors": WEIGHTS,
        }
        self.token: str | None = None
        self.cut: list[int] = []
        self.corrupt = 0
        self.codes: list[int] = []
        self.ranges = True
        self.headers: dict[str, str] = {}
        self.silent = False
        self.closed = threading.Event()
        self.sent = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.storage = self._serve("storage")
        self.hub = self._serve("hub")
        self.url = f"http://127.0.0.1:{self.hub.server_port}"

    def _serve(self, role: str) -> ThreadingHTTPServer:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.requests.append((role, self.path, dict(self.headers)))
                fake.answer_hub(self) if role == "hub" else fake.answer_storage(self)

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def answer_hub(self, request: BaseHTTPRequestHandler) -> None:
        if self.silent:
            self.closed.wait()
            request.close_connection = True
            return None
        if self.codes:
            return self.send(request, self.codes.pop(0), b"", self.headers)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.send(request, 401, b"")
        path = request.path
        if path in ("/api/models/org/tiny/revision/main", f"/api/models/org/tiny/revision/{COMMIT}"):
            return self.send(request, 200, json.dumps({"sha": COMMIT}).encode())
        if path.startswith(f"/api/models/org/tiny/tree/{COMMIT}"):
            return self.tree(request)
        if path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
            target = f"http://127.0.0.1:{self.storage.server_port}/{name}"
            return self.send(request, 302, b"", {"Location": target})
        return self.send(request, 404, b"")

    def tree(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.path.partition("?")[0].removeprefix(f"/api/models/org/tiny/tree/{COMMIT}").strip("/")
        folders = {"onnx", *(name.rpartition("/")[0] for name in self.files)} - {""} if not asked else set()
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": folder, "size": 0, "oid": "x"} for folder in sorted(folders)
        ]
        for name, data in self.files.items():
            if name.rpartition("/")[0] != asked:
                continue
            blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": blob}
            if len(data) > 1000:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            entries.append(entry)
        # Two pages, as a hub cuts long lists.
        first = "page=2" not in request.path
        page = entries[:2] if first else entries[2:]
        link = {"Link": f'<{self.url}{request.path}?page=2>; rel="next"'} if first else {}
        self.send(request, 200, json.dumps(page).encode(), link)

    def answer_storage(self, request: BaseHTTPRequestHandler) -> None:
        data = self.files[request.path[1:]]
        start, end = 0, len(data)
        if self.ranges and (asked := request.headers.get("Range")):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) + 1 if last else len(data)
        body = data[start:end]
        if self.corrupt and len(data) > 1000:
            self.corrupt -= 1
            body = b"?" + body[1:]
        self.sent += len(body)
        request.send_response(206 if request.headers.get("Range") and self.ranges else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.cut and len(data) > 1000:
            request.wfile.write(body[: self.cut.pop(0)])
            request.close_connection = True
            return
        request.wfile.write(body)

    @staticmethod
    def send(request: BaseHTTPRequestHandler, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        request.send_response(code)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def close(self) -> None:
        self.closed.set()
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()
