"""A hub for a pod: `python hub.py FOLDER` serves the files of FOLDER as org/model, those of a folder in it as org/NAME.

Each is at one commit.

As much of the hub's API as a download uses, with ranges; every request is a line of the log.
"""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
FOLDER = Path(sys.argv[1])


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


REPOSITORIES = {"model": files_of(FOLDER), **{path.name: files_of(path) for path in FOLDER.iterdir() if path.is_dir()}}


def respond(name: str, files: dict[str, bytes], path: str) -> bytes | None:
    """The answer of a repository, None for a path that is not one of its own."""
    if path in (f"/api/models/org/{name}/revision/main", f"/api/models/org/{name}/revision/{COMMIT}"):
        return json.dumps({"sha": COMMIT}).encode()
    if path == f"/api/models/org/{name}/tree/{COMMIT}":
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
        listed = [
            {"type": "file", "path": file, "size": len(data), "lfs": {"oid": hashes[file], "size": len(data)}}
            for file, data in files.items()
        ]
        return json.dumps(listed).encode()
    prefix = f"/org/{name}/resolve/{COMMIT}/"
    return files.get(path.removeprefix(prefix)) if path.startswith(prefix) else None


class Handler(BaseHTTPRequestHandler):
    """GET of the revision, the list of files, and files."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for name, files in REPOSITORIES.items():
            answer = respond(name, files, path)
            if answer is not None:
                return self._answer(answer)
        return self.send_error(404)

    def _answer(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None] if first else data
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


ThreadingHTTPServer(("", 8080), Handler).serve_forever()
