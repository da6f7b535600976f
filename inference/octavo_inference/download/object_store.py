"""Models in buckets: `s3://BUCKET/PREFIX` and `gs://BUCKET/PREFIX`.

A bucket has no commits. The revision of a model is a hash of the names, sizes and ETags of its files, so that pods that
start later get the same files or an error, never a mixture. Sizes are verified, and the ETag of every response; buckets
do not provide a content hash for all objects, so integrity relies on the transport (TLS).
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store

from octavo_inference.checkpoints.gguf_names import part_names
from octavo_inference.download.transfer import BrokenError, PrefetchError, RemoteFile, complete, of_module, wait

if TYPE_CHECKING:
    # Structural types of the library's dynamically generated classes.
    from obstore import GetResult, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

_TARGET = re.compile(r"(s3|gs)://([a-z0-9][a-z0-9._-]*(?:/[A-Za-z0-9._=+-]+)*)/?(?:@([0-9a-f]{40}))?")
# Files of a model; others in the same folder may change without changing the revision.
_SUFFIXES = (".json", ".txt", ".jinja", ".model", ".safetensors", ".gguf")
_CHUNK = 1 << 17
# Error codes about credentials, regardless of the status.
_REFUSED = frozenset({"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "invalid_grant"})
_ELSEWHERE = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})


class Bucket:
    """A client of one bucket. A model is named BUCKET/PREFIX, or BUCKET/PATH.gguf for one of several."""

    def __init__(self, store: S3Store | GCSStore, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._sleep = sleep

    def commit(self, repo: str, revision: str) -> str:
        """The current revision. Raises when it differs from the requested one."""
        found = _revision(self._list(repo))
        if revision not in ("", found):
            raise PrefetchError(
                f"{repo}: its files are not those of revision {revision} any more, they are {found}: one was changed, "
                f"added or removed; set spec.model.revision to {found} to serve what is there now",
                "ModelNotFound",
            )
        return found

    def files(self, repo: str, commit: str) -> Sequence[RemoteFile]:
        """The files of a revision. Subfolders contain other formats of the same weights, but for those of modules."""
        files = self._list(repo)
        if _revision(files) != commit:
            raise _changed(repo, commit)
        return files

    def head(self, repo: str, commit: str, file: RemoteFile, count: int) -> bytes:
        """The first `count` bytes of a file."""
        attempts = 0
        while True:
            try:
                with self._spoken(repo):
                    answer = self._get(repo, commit, file, (0, count))
                    data = bytes(answer.bytes())
            except BrokenError as error:
                attempts += 1
                wait(attempts, attempts, error, f"{repo}/{file.name}", self._sleep)
            else:
                if len(data) < count:
                    raise _changed(repo, commit)
                return data

    def download(self, repo: str, commit: str, file: RemoteFile, folder: Path, tell: Callable[[int], None]) -> None:
        """Have `file` complete in `folder`. `tell` is given the bytes of each piece."""
        complete(file, folder, lambda part: self._continue(repo, commit, file, part, tell), self._sleep)

    def _continue(self, repo: str, commit: str, file: RemoteFile, part: Path, tell: Callable[[int], None]) -> None:
        with part.open("ab") as out:
            start = out.tell()
            if start < file.size:
                with self._spoken(repo):
                    for piece in self._get(repo, commit, file, (start, file.size)).stream(_CHUNK):
                        out.write(piece)
                        start += len(piece)
                        tell(len(piece))
        if start < file.size:
            raise BrokenError(f"the connection ended after {start} of {file.size} bytes")
        if start > file.size:
            part.unlink()
            raise BrokenError(f"{start} bytes came of {file.size}")

    def _get(self, repo: str, commit: str, file: RemoteFile, span: tuple[int, int]) -> GetResult:
        """An answer with bytes from `span[0]` to before `span[1]`, of the file as it was listed."""
        try:
            answer = obstore.get(self._store, f"{_prefix(repo)}{file.name}", options={"range": span})
        except FileNotFoundError as error:
            raise _changed(repo, commit) from error
        if _etag(answer.meta) != file.etag:
            raise _changed(repo, commit)
        return answer

    def _list(self, repo: str) -> Sequence[RemoteFile]:
        attempts = 0
        while True:
            try:
                with self._spoken(repo):
                    listed = obstore.list_with_delimiter(self._store, _prefix(repo) or None)
                    found = [*listed["objects"]]
                    for folder in listed["common_prefixes"]:
                        if of_module(folder.rstrip("/").rpartition("/")[2]):
                            found += obstore.list_with_delimiter(self._store, folder)["objects"]
            except BrokenError as error:
                attempts += 1
                wait(attempts, attempts - 1, error, repo, self._sleep)
            else:
                break
        prefix = _prefix(repo)
        files = [RemoteFile(meta["path"].removeprefix(prefix), meta["size"], None, None, _etag(meta)) for meta in found]
        only = part_names(repo.rpartition("/")[2]) if repo.endswith(".gguf") else ()
        files = [file for file in files if file.name.endswith(_SUFFIXES) and (not only or file.name in only)]
        if not files:
            where = repo if only else f"{repo}/"
            raise PrefetchError(f"the bucket has no model files at {where}", "ModelNotFound")
        return sorted(files, key=lambda file: file.name)

    @contextmanager
    def _spoken(self, repo: str) -> Iterator[None]:
        """Translates errors of the library, whose message contains status and body of the response."""
        try:
            yield
        except BaseError as error:
            raise _translated(repo, str(error)) from error


def _translated(repo: str, said: str) -> PrefetchError | BrokenError:
    """The error for a message of the library."""
    bucket = repo.partition("/")[0]
    status = int(found.group(1)) if (found := re.search(r"status code: (\d{3})", said)) else 0
    code = found.group(1) if (found := re.search(r"<Code>(\w+)</Code>|\"error\": ?\"(\w+)\"", said)) else ""
    answer = f"the bucket answered {status}{f' ({code})' if code else ''}"
    if status in (401, 403) or code in _REFUSED or "invalid_grant" in said:
        return PrefetchError(
            f"{repo}: access is refused ({status}{f' {code}' if code else ''}); set spec.model.credentialsSecretRef to "
            "a Secret whose key may list and read it",
            "Unauthorized",
        )
    if code in _ELSEWHERE or status == 301 or "incorrectly configured region" in said:
        return PrefetchError(
            f"{repo}: bucket {bucket!r} is in another region; set AWS_REGION in spec.engine.env", "ModelNotFound"
        )
    if status == 404:
        return PrefetchError(f"{repo}: there is no bucket {bucket!r} (404)", "ModelNotFound")
    if status == 429 or code == "SlowDown":
        return BrokenError(answer, "RateLimited")
    if status:
        return BrokenError(answer, "DownloadFailed")
    cause = re.findall(r'(?:message|error): "([^"]+)"', said)
    told = cause[-1] if cause else said.partition("\n")[0].rpartition(" - ")[2]
    return BrokenError(f"the bucket cannot be reached: {told}", "SourceUnreachable")


def _changed(repo: str, commit: str) -> PrefetchError:
    return PrefetchError(
        f"{repo}: its files are not those of revision {commit} any more: "
        "one was changed, added or removed during the download",
        "ModelNotFound",
    )


def _prefix(repo: str) -> str:
    """Folder of a model in its bucket, empty for the top, else with a slash at its end."""
    path = repo.partition("/")[2]
    folder = path.rpartition("/")[0] if path.endswith(".gguf") else path
    return f"{folder}/" if folder else ""


def _etag(meta: ObjectMeta) -> str:
    """An ETag without quotes, which some stores omit in some responses."""
    return (meta["e_tag"] or "").removeprefix("W/").strip('"')


def _revision(files: Sequence[RemoteFile]) -> str:
    """Forty hex digits over names, sizes and ETags."""
    lines = [f"{file.name}\0{file.size}\0{file.etag}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:40]


def open_bucket(target: str, sleep: Callable[[float], None] = time.sleep) -> tuple[Bucket, str, str]:
    """The bucket of a target, the model's name in it, and the requested revision, "" for the current one.

    Keys, region and endpoint come from the environment variables of the library; without a key, requests are anonymous.
    """
    match = _TARGET.fullmatch(target)
    if match is None or {".", ".."} & set(match.group(2).split("/")):
        raise PrefetchError(f"{target!r} must be s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    scheme, repo, revision = match.groups()
    name = repo.partition("/")[0]
    variable = "AWS_ENDPOINT_URL" if scheme == "s3" else "GOOGLE_BASE_URL"
    endpoint = os.environ.get(variable) or ""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise PrefetchError(f"{variable}: {endpoint!r} must be an http:// or https:// address")
    # No limit on a file's total time, only on silence. Retries are counted here, not by the library.
    client: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": "15s",
        "read_timeout": "60s",
        "timeout": "7d",
        "user_agent": "octavo-prefetch",
    }
    retry: RetryConfig = {"max_retries": 0}
    try:
        if scheme == "s3":
            signed = bool(os.environ.get("AWS_ACCESS_KEY_ID"))
            store: S3Store | GCSStore = S3Store(
                name, skip_signature=not signed, client_options=client, retry_config=retry
            )
        else:
            signed = bool(os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"))
            store = GCSStore(name, skip_signature=not signed, client_options=client, retry_config=retry)
    except BaseError:
        # The library's message may contain the key that it could not parse.
        raise PrefetchError(
            f"{repo}: the settings of the bucket cannot be used: look at AWS_* and GOOGLE_* in spec.engine.env and in "
            "the Secret of spec.model.credentialsSecretRef (GOOGLE_SERVICE_ACCOUNT_KEY is the JSON of a key)",
            "Unauthorized",
        ) from None
    return Bucket(store, sleep), repo, revision or ""
