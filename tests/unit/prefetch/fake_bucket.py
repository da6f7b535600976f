"""A bucket on the loopback, that answers as S3 and GCS do (the XML API of both lists alike): and fails as they do."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

WEIGHTS = bytes(range(256)) * 4000


class FakeBucket:
    """The bucket `models`; a key of `files` is the whole path in it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {
            "team/tiny/config.json": b"{}",
            "team/tiny/tokenizer.json": b'{"a": 1}',
            "team/tiny/model.safetensors": WEIGHTS,
            "team/tiny/README.md": b"#",
            "team/tiny/onnx/model.json": b"{}",
            "team/tinier/config.json": b"{}",
        }
        # Which key identifier may read; None for everybody.
        self.key: str | None = None
        self.codes: list[tuple[int, str]] = []
        self.cut: list[int] = []
        self.silent = False
        self.closed = threading.Event()
        self.sent = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.requests.append((self.path, dict(self.headers)))
                fake.answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.silent:
            self.closed.wait()
            request.close_connection = True
            return None
        if self.codes:
            return self.refuse(request, *self.codes.pop(0))
        told = {name.lower(): value for name, value in request.headers.items()}.get("authorization", "")
        if self.key is not None and f"Credential={self.key}/" not in told:
            return self.refuse(request, 403, "AccessDenied")
        url = urlsplit(request.path)
        bucket, _, path = unquote(url.path).removeprefix("/").partition("/")
        if bucket != "models":
            return self.refuse(request, 404, "NoSuchBucket")
        if not path:
            return self.list(request, {name: values[0] for name, values in parse_qs(url.query).items()})
        if path not in self.files:
            return self.refuse(request, 404, "NoSuchKey")
        return self.send(request, path)

    def list(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        assert query["list-type"] == "2"
        assert query["delimiter"] == "/"
        prefix = query.get("prefix", "")
        names = [name for name in sorted(self.files) if name.startswith(prefix) and "/" not in name[len(prefix) :]]
        # Pages of two, as a bucket cuts long lists.
        first = int(query.get("continuation-token", "0"))
        body = f"<ListBucketResult><Name>models</Name><Prefix>{escape(prefix)}</Prefix>"
        for name in names[first : first + 2]:
            size = len(self.files[name])
            body += (
                f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>{escape(self.etag(name))}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        more = first + 2 < len(names)
        token = f"<NextContinuationToken>{first + 2}</NextContinuationToken>" if more else ""
        body += f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}</ListBucketResult>"
        data = body.encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def send(self, request: BaseHTTPRequestHandler, path: str) -> None:
        data = self.files[path]
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(data))
        body = data[start:end]
        request.send_response(206)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        request.send_header("ETag", self.etag(path))
        request.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        request.end_headers()
        self.sent += len(body)
        if self.cut and len(data) > 1000:
            request.wfile.write(body[: self.cut.pop(0)])
            request.close_connection = True
            return
        request.wfile.write(body)

    def etag(self, path: str) -> str:
        return f'"{hashlib.md5(self.files[path], usedforsecurity=False).hexdigest()}"'

    @staticmethod
    def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        data = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code></Error>'.encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()
