"""Downloads a model from a hub or bucket, and verifies it.

Interrupted downloads resume. A target is hf://ORG/REPO[@REVISION], whose files are verified by the hub's size and hash
(sha256 for large files, git's blob hash for small ones; token in HF_TOKEN, address in HF_ENDPOINT), or s3:// or gs://
(object_store.py).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from octavo_inference.checkpoints.gguf_names import gguf_models
from octavo_inference.download.transfer import (
    BrokenError,
    CorruptError,
    PrefetchError,
    Remote,
    RemoteFile,
    complete,
    disk_full,
    of_module,
    wait,
)

HUB = "https://huggingface.co"
PROGRESS_SECONDS = 5.0
_CHUNK = 1 << 20
_TIMEOUT = 60.0
_INDEX = "model.safetensors.index.json"
_TEXT_SUFFIXES = (".json", ".txt", ".jinja", ".model")


Meter = Callable[[int, int, float], None]
"""Called during a download with the bytes that are there, the bytes in all, and bytes per second."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def _same_origin(first: str, second: str) -> bool:
    return urlsplit(first)[:2] == urlsplit(second)[:2]


class KeepTokenHome(HTTPRedirectHandler):
    """Drops the token on redirects to other hosts or without TLS: files are in storage with signed URLs."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """The request that follows, None for none."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and not _same_origin(req.full_url, newurl):
            following.remove_header("Authorization")
        return following


class Hub:
    """A client of one hub, with or without a token."""

    def __init__(self, endpoint: str, token: str | None, sleep: Callable[[float], None] = time.sleep) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise PrefetchError(f"HF_ENDPOINT: {endpoint!r} must be an http:// or https:// address")
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"User-Agent": "octavo-prefetch"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._opener: OpenerDirector = build_opener(KeepTokenHome)
        self._sleep = sleep

    def commit(self, repo: str, revision: str) -> str:
        """The commit of a branch, tag or commit."""
        url = f"{self._endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}"
        return str(self._json(url, f"{repo}@{revision}")[0]["sha"])

    def files(self, repo: str, commit: str) -> list[RemoteFile]:
        """The files at the top of the repository, and in folders of modules.

        Other folders contain other formats of the same weights.
        """
        entries = self._tree(repo, commit, "")
        for folder in [entry["path"] for entry in entries if entry["type"] == "directory"]:
            if of_module(folder):
                entries += self._tree(repo, commit, f"/{folder}")
        found: list[RemoteFile] = []
        for entry in entries:
            folder = entry["path"].rpartition("/")[0]
            if entry["type"] == "file" and (not folder or of_module(folder)):
                lfs = entry.get("lfs") or {}
                blob = None if lfs else entry.get("oid")
                found.append(RemoteFile(entry["path"], lfs.get("size", entry["size"]), lfs.get("oid"), blob))
        return found

    def _tree(self, repo: str, commit: str, folder: str) -> list[Any]:
        """The entries of a folder, "" for the top."""
        found: list[Any] = []
        url: str | None = f"{self._endpoint}/api/models/{repo}/tree/{commit}{folder}"
        while url is not None:
            entries, url = self._json(url, repo)
            found += entries
        return found

    def download(self, repo: str, commit: str, file: RemoteFile, folder: Path, tell: Callable[[int], None]) -> None:
        """Have `file` complete and checked in `folder`. `tell` is given the bytes of each piece."""
        complete(file, folder, lambda part: self._continue(repo, commit, file, part, tell), self._sleep)

    def head(self, repo: str, commit: str, file: RemoteFile, count: int) -> bytes:
        """The first `count` bytes of a file."""
        url = f"{self._endpoint}/{repo}/resolve/{commit}/{quote(file.name)}"
        attempts = 0
        while True:
            try:
                with self._open(url, f"{repo}/{file.name}", {"Range": f"bytes=0-{count - 1}"}) as answer:
                    return _exactly(answer, count)
            except (BrokenError, OSError, http.client.HTTPException) as error:
                attempts += 1
                wait(attempts, attempts, error, file.name, self._sleep)

    def _continue(self, repo: str, commit: str, file: RemoteFile, part: Path, tell: Callable[[int], None]) -> None:
        digest = _digest(file)
        start = 0
        if part.exists():
            with part.open("rb") as have:
                for piece in _pieces(have):
                    digest.update(piece)
                    start += len(piece)
        if start < file.size:
            url = f"{self._endpoint}/{repo}/resolve/{commit}/{quote(file.name)}"
            headers = {"Range": f"bytes={start}-"} if start else {}
            with self._open(url, f"{repo}/{file.name}", headers) as answer:
                if start and answer.status != http.client.PARTIAL_CONTENT:
                    digest, start = _digest(file), 0
                with part.open("ab" if start else "wb") as out:
                    for piece in _pieces(answer):
                        out.write(piece)
                        digest.update(piece)
                        start += len(piece)
                        tell(len(piece))
        if start < file.size:
            raise BrokenError(f"the connection ended after {start} of {file.size} bytes")
        if start > file.size or digest.hexdigest() != (file.sha256 or file.blob):
            part.unlink()
            raise CorruptError("the downloaded file's hash differs from the hub's")

    def _json(self, url: str, what: str) -> tuple[Any, str | None]:
        """An answer of the hub's API, and the address of its next page."""
        attempts = 0
        while True:
            try:
                with self._open(url, what, {}) as answer:
                    link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
                    return json.load(answer), link.group(1) if link else None
            except (BrokenError, OSError, http.client.HTTPException, ValueError) as error:
                attempts += 1
                wait(attempts, attempts - 1, error, url, self._sleep)

    def _open(self, url: str, what: str, headers: Mapping[str, str]) -> Any:
        request = Request(url, headers={**self._headers, **headers})  # noqa: S310 - http or https, checked above
        if not _same_origin(url, self._endpoint):  # a next page: the answer chooses its address
            request.remove_header("Authorization")
        try:
            return self._opener.open(request, timeout=_TIMEOUT)
        except HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise PrefetchError(
                        f"{what}: the hub refuses access ({error.code}); the model is private or gated: set "
                        "spec.model.credentialsSecretRef to a Secret with a token that may read it",
                        "Unauthorized",
                    ) from error
                if error.code == 404:
                    message = f"{what}: the hub has no such model, revision or file (404)"
                    raise PrefetchError(message, "ModelNotFound") from error
                reason = "RateLimited" if error.code == 429 else "DownloadFailed"
                raise BrokenError(f"the hub answered {error.code}", reason, _retry_after(error.headers)) from error
        except URLError as error:
            raise BrokenError(f"the hub cannot be reached: {error.reason}", "SourceUnreachable") from error


def choose(files: Sequence[RemoteFile], shards: frozenset[str] | None, quantization: str = "") -> list[RemoteFile]:
    """The files to download: the weights in one format, and all that the tokenizer may need.

    `shards`: the files in the weights' index, None without an index. `quantization` selects one of several GGUF models
    by a part of its name, such as Q4_K_M. A GGUF model may be a set of files. Raises PrefetchError when the weights are
    missing or ambiguous.
    """
    texts = [file for file in files if file.name.endswith(_TEXT_SUFFIXES)]
    texts += [file for file in files if "/" in file.name and file.name.endswith(".safetensors")]  # of modules
    tensors = [file for file in files if "/" not in file.name and file.name.endswith(".safetensors")]
    if quantization:
        return texts + _gguf(files, quantization)
    if shards is not None:
        missing = shards - {file.name for file in tensors}
        if missing:
            raise PrefetchError(f"{_INDEX} names {', '.join(sorted(missing)[:3])}, which the repository does not have")
        return texts + [file for file in tensors if file.name in shards]
    if tensors:
        whole = [file for file in tensors if file.name == "model.safetensors"]
        return texts + (whole or tensors)
    models = gguf_models(file.name for file in files)
    if len(models) == 1:
        return texts + _parts(files, models[0])
    if models:
        listed = ", ".join(model[0] for model in models[:3])
        raise PrefetchError(
            f"the repository has {len(models)} GGUF files ({listed}, …) and not one: put the one you want into an "
            "image (oci://) or onto a volume (pvc://)"
        )
    raise PrefetchError("the repository has no *.safetensors and no *.gguf at its top")


def _gguf(files: Sequence[RemoteFile], quantization: str) -> list[RemoteFile]:
    models = gguf_models(file.name for file in files)
    found = [model for model in models if quantization.lower() in model[0].lower()]
    if len(found) != 1:
        listed = ", ".join(model[0] for model in models) or "none"
        raise PrefetchError(f"{len(found)} GGUF files have {quantization!r} in their name; there are: {listed}")
    return _parts(files, found[0])


def _parts(files: Sequence[RemoteFile], names: Sequence[str]) -> list[RemoteFile]:
    by_name = {file.name: file for file in files}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise PrefetchError(f"the repository lacks {missing[0]}, one of the {len(names)} files of the model")
    return [by_name[name] for name in names]


def prefetch(
    remote: Remote, repo: str, revision: str, folder: Path, say: Callable[[str], None], clock: Callable[[], float]
) -> None:
    """Have the model complete in `folder`."""
    commit = remote.commit(repo, revision)
    say(f"{repo}@{revision} is revision {commit}" if revision else f"{repo} is revision {commit}")
    fetch(remote, repo, commit, folder, say, clock)


def fetch(
    remote: Remote,
    repo: str,
    commit: str,
    folder: Path,
    say: Callable[[str], None],
    clock: Callable[[], float],
    quantization: str = "",
    meter: Meter | None = None,
) -> list[RemoteFile]:
    """Download the model of a commit into `folder`; the files that it consists of. `meter` gets the progress."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrefetchError(f"{folder} cannot be made: {error.strerror}", "CacheNotWritable") from error
    files = remote.files(repo, commit)
    shards = None
    index = next((file for file in files if file.name == _INDEX), None)
    if index is not None and not quantization:
        fetch_files(remote, repo, commit, [index], folder, say, clock)
        shards = frozenset(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    chosen = choose(files, shards, quantization)
    fetch_files(remote, repo, commit, chosen, folder, say, clock, meter)
    say("complete")
    return chosen


def fetch_files(
    remote: Remote,
    repo: str,
    commit: str,
    files: Sequence[RemoteFile],
    folder: Path,
    say: Callable[[str], None],
    clock: Callable[[], float],
    meter: Meter | None = None,
) -> None:
    """Have these files of a commit in `folder`, which exists. Those that are there already are not downloaded."""
    wanted = [file for file in files if not _have(file, folder)]
    total = sum(file.size for file in wanted)
    partial = sum(part.stat().st_size for file in wanted if (part := folder / f"{file.name}.part").exists())
    free = shutil.disk_usage(folder).free
    if total - partial > free:
        raise disk_full(folder, total - partial)
    done, began = partial, clock()
    meter = meter or _lines(say, clock)

    def tell(size: int) -> None:
        nonlocal done
        done += size
        meter(done, total, (done - partial) / max(clock() - began, 1e-9))

    for file in wanted:
        remote.download(repo, commit, file, folder, tell)
        say(f"{file.name}: {file.size / 1e6:.1f} MB")


def _lines(say: Callable[[str], None], clock: Callable[[], float]) -> Meter:
    """A line every few seconds."""
    said = clock()

    def meter(done: int, total: int, speed: float) -> None:
        nonlocal said
        if clock() - said >= PROGRESS_SECONDS:
            said = clock()
            say(f"{done / 1e9:.2f} of {total / 1e9:.2f} GB, {speed / 1e6:.0f} MB/s")

    return meter


def _retry_after(headers: Message) -> float:
    """Retry-After in seconds; a date counts as none."""
    value = headers.get("Retry-After") or ""
    return float(value) if value.isdigit() else 0.0


def _have(file: RemoteFile, folder: Path) -> bool:
    """True if the file exists; a file gets this name only after verification."""
    path = folder / file.name
    return path.exists() and path.stat().st_size == file.size


def _digest(file: RemoteFile) -> _Hash:
    if file.sha256 is not None:
        return hashlib.sha256()
    blob = hashlib.sha1(usedforsecurity=False)
    blob.update(f"blob {file.size}\0".encode())
    return blob


def _exactly(source: BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise BrokenError(f"the connection ended after {len(data)} of {count} bytes")
    return data


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(_CHUNK):
        yield piece


def parse(target: str) -> tuple[str, str]:
    """Repository and revision of `hf://ORG/REPO[@REVISION]`."""
    match = re.fullmatch(r"hf://([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([A-Za-z0-9._/-]+))?", target)
    if match is None:
        raise PrefetchError(f"{target!r} must be hf://ORGANISATION/REPOSITORY or hf://ORGANISATION/REPOSITORY@REVISION")
    return match.group(1), match.group(2) or "main"


def connect(target: str) -> tuple[Remote, str, str]:
    """The client for a target, with the environment's credentials, and the target's repository and revision."""
    if target.startswith(("s3://", "gs://")):
        # Imported here, because the library is slow to import.
        from octavo_inference.download.object_store import open_bucket  # noqa: PLC0415

        return open_bucket(target)
    repo, revision = parse(target)
    return Hub(os.environ.get("HF_ENDPOINT") or HUB, os.environ.get("HF_TOKEN")), repo, revision
