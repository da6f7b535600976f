"""A registry on the loopback that answers as the OCI distribution specification says."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class FakeRegistry:
    """One image, models/tiny:1. `challenge`: "", "basic" or "bearer"; `user`: whom it lets in, None for anybody."""

    def __init__(self) -> None:
        self.challenge = ""
        self.user: str | None = None
        self.codes: list[int] = []
        self.names_digest = True
        self.digest, self.manifest, self.token_text = DIGEST, MANIFEST, "t0ken"
        self.realm = "http://{host}/token"
        self.cut = 0
        self.requests: list[tuple[str, str, str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.answer(self)

            def do_HEAD(self) -> None:
                fake.answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.image = f"{self.host}/models/tiny:1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers.get("Authorization") or ""
        self.requests.append((request.command, request.path, given))
        if self.codes:
            return self.send(request, self.codes.pop(0), b"{}")
        path = urlsplit(request.path)
        if path.path == "/token":
            return self.token(request, given, parse_qs(path.query))
        if self.challenge and given not in {self.basic(), "Bearer t0ken"}:
            realm = self.realm.format(host=self.host)
            kinds = {
                "basic": 'Basic realm="registry"',
                "bearer": f'Bearer realm="{realm}",service="here",scope="repository:models/tiny:pull"',
            }
            challenge = {"WWW-Authenticate": kinds.get(self.challenge, self.challenge)}
            return self.send(request, 401, self.error("UNAUTHORIZED", "authentication required"), challenge)
        if path.path != "/v2/models/tiny/manifests/1":
            return self.send(request, 404, self.error("MANIFEST_UNKNOWN", "manifest unknown"))
        named = {"Docker-Content-Digest": self.digest} if self.names_digest else {}
        if self.cut:
            named["Content-Length"] = str(len(self.manifest) + self.cut)
        return self.send(request, 200, self.manifest, named)

    def token(self, request: BaseHTTPRequestHandler, given: str, query: dict[str, list[str]]) -> None:
        if query | {"account": ["a"]} != {
            "account": ["a"],
            "service": ["here"],
            "scope": ["repository:models/tiny:pull"],
        }:
            return self.send(request, 400, b"")
        if self.user is not None and given != self.basic():
            return self.send(request, 401, self.error("UNAUTHORIZED", "bad credentials"))
        return self.send(request, 200, json.dumps({"access_token": self.token_text}).encode())

    def basic(self) -> str:
        return "Basic " + base64.b64encode((self.user or "").encode()).decode()

    @staticmethod
    def error(code: str, message: str) -> bytes:
        return json.dumps({"errors": [{"code": code, "message": message}]}).encode()

    @staticmethod
    def send(request: BaseHTTPRequestHandler, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        request.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
