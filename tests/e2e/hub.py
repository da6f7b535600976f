"""A hub with one model, for a pod: `python hub.py FOLDER` serves the files of FOLDER as org/model at one commit.

As much of the hub's API as a download uses, with ranges; every request is a line of the log.
"""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
FILES = {path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir() if path.is_file()}
HASHES = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


class Handler(BaseHTTPRequestHandler):
    """GET of the revision, the list of files, and files."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/api/models/org/model/revision/main", f"/api/models/org/model/revision/{COMMIT}"):
            self._answer(json.dumps({"sha": COMMIT}).encode())
        elif path == f"/api/models/org/model/tree/{COMMIT}":
            files = [
                {"type": "file", "path": name, "size": len(data), "lfs": {"oid": HASHES[name], "size": len(data)}}
                for name, data in FILES.items()
            ]
            self._answer(json.dumps(files).encode())
        elif path.startswith(f"/org/model/resolve/{COMMIT}/") and path.rsplit("/", 1)[1] in FILES:
            self._answer(FILES[path.rsplit("/", 1)[1]])
        else:
            self.send_error(404)

    def _answer(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None] if first else data
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


ThreadingHTTPServer(("", 8080), Handler).serve_forever()
