"""Resolves the tag of an image to the digest that its registry has now (OCI distribution specification, pull).

Credentials come from files of Secrets of the type kubernetes.io/dockerconfigjson. They are matched as the kubelet does,
and sent over TLS alone, except to a registry on the loopback. Redirects from https to http are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from fnmatch import fnmatchcase
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, build_opener

from octavo_inference.common.errors import OctavoError
from octavo_inference.download.hub import KeepTokenHome

_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution"
_MANIFESTS = (
    f"{_OCI}.index.v1+json, {_OCI}.manifest.v1+json, {_DOCKER}.manifest.list.v2+json, {_DOCKER}.manifest.v2+json"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
# Characters that a header may have.
_TOKEN = re.compile(r"[!-~]+")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB, _DOCKER_HUB_API = "docker.io", "registry-1.docker.io"
_DOCKER_HUB_NAMES = frozenset({_DOCKER_HUB, _DOCKER_HUB_API, "index.docker.io"})
_TIMEOUT = 5.0
_ATTEMPTS = 2
_MOST_BYTES = 4 << 20
_MOST_WORDS = 200


class UnresolvedError(OctavoError):
    """The tag cannot be resolved. The message has the registry's answer."""


class _UnreachableError(UnresolvedError):
    """Another attempt may succeed."""


class KeepTls(KeepTokenHome):
    """Refuses redirects from https to http: an answer without TLS could name any digest."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """The request that follows, None for none. Raises `UnresolvedError`."""
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise UnresolvedError(f"{urlsplit(req.full_url).netloc} redirects from https to {newurl[:80]!r}: use https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True, slots=True)
class Image:
    """A reference, taken apart. `digest` is empty if the reference has a tag, or neither."""

    registry: str
    repository: str
    tag: str
    digest: str


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password for the repositories that begin with `path` in the registries that match `host`."""

    host: str
    path: str
    user: str
    password: str

    @property
    def basic(self) -> str:
        """The value of the header Authorization."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode(errors="replace")).decode()


def parse_image(reference: str) -> Image:
    """Take a reference apart as container runtimes do: without a registry it is Docker Hub's, without a tag latest."""
    name, _, digest = reference.partition("@")
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        registry, path = first, rest
    else:
        registry, path = _DOCKER_HUB, name
    repository, _, tag = path.partition(":")
    if registry in _DOCKER_HUB_NAMES and "/" not in repository:
        repository = f"library/{repository}"
    return Image(registry, repository, tag or "latest", digest)


def read_pull_secrets(folder: Path | None) -> list[Credentials]:
    """The credentials in all files of a folder; files that are no Docker configuration are left out."""
    found: list[Credentials] = []
    for file in sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []:
        try:
            auths = json.loads(file.read_bytes())["auths"]
            found += [known for key, entry in auths.items() if (known := _credentials(key, entry)) is not None]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def resolve_digest(
    reference: str, known: Iterable[Credentials] = (), sleep: Callable[[float], None] = time.sleep
) -> str:
    """The digest of a reference, such as `sha256:…`. Raises `UnresolvedError` with the registry's answer."""
    image = parse_image(reference)
    if image.digest:
        return image.digest
    matching = [one for one in known if _matches(one, image)]
    client = _Registry(image, max(matching, key=lambda one: len(one.path), default=None))
    for attempt in range(1, _ATTEMPTS):
        try:
            return client.digest()
        except _UnreachableError:
            sleep(float(attempt))
    return client.digest()


class _Registry:
    def __init__(self, image: Image, credentials: Credentials | None) -> None:
        host = _DOCKER_HUB_API if image.registry in _DOCKER_HUB_NAMES else image.registry
        self._image, self._credentials = image, credentials
        self._near = _is_loopback(host)
        self._url = f"{'http' if self._near else 'https'}://{host}/v2/{quote(image.repository)}/manifests/{image.tag}"
        self._opener = build_opener(KeepTls)

    def digest(self) -> str:
        """Ask without credentials, then as the registry's challenge says."""
        headers = {"Accept": _MANIFESTS, "User-Agent": "octavo-inspect"}
        # Registries count GET as a pull.
        status, answer, _ = self._ask(self._url, headers, "HEAD")
        if status == 401:
            headers["Authorization"] = self._authorization(answer.get("WWW-Authenticate") or "")
            status, answer, _ = self._ask(self._url, headers, "HEAD")
        given = answer.get("Docker-Content-Digest") or ""
        if status == 200 and _DIGEST.fullmatch(given):
            return given
        status, answer, body = self._ask(self._url, headers, "GET")
        if status != 200:
            raise self._refused(status, body)
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    def _authorization(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        fields = dict(_CHALLENGE.findall(rest))
        if scheme.lower() == "basic":
            if self._credentials is None:
                raise UnresolvedError(f"{self._image.registry} wants a password, and no pull secret has one for it")
            return self._credentials.basic
        if scheme.lower() != "bearer" or not (address := self._token_address(fields)):
            raise UnresolvedError(f"{self._image.registry} asks for {challenge[:80]!r}, which is not supported")
        headers = {} if self._credentials is None else {"Authorization": self._credentials.basic}
        status, _, body = self._ask(address, headers, "GET")
        if status != 200:
            raise self._refused(status, body)
        try:
            answer = json.loads(body)
            token = str(answer.get("token") or answer["access_token"])
        except (ValueError, KeyError, AttributeError, RecursionError):
            token = ""
        if not _TOKEN.fullmatch(token):
            raise UnresolvedError(f"{self._image.registry}: the answer of {urlsplit(address).netloc} has no token")
        return f"Bearer {token}"

    def _token_address(self, fields: Mapping[str, str]) -> str:
        """The address of the token server in a challenge, empty if it is none that credentials may be sent to."""
        try:
            realm = urlsplit(fields.get("realm", ""))
            host = realm.hostname or ""
        except ValueError:
            return ""
        if not host or not (realm.scheme == "https" or (realm.scheme == "http" and self._near and _is_loopback(host))):
            return ""
        scope = fields.get("scope") or f"repository:{self._image.repository}:pull"
        service = {"service": fields["service"]} if fields.get("service") else {}
        query = "&".join(part for part in (realm.query, urlencode({**service, "scope": scope})) if part)
        return urlunsplit((realm.scheme, realm.netloc, realm.path, query, ""))

    def _ask(self, url: str, headers: Mapping[str, str], method: str) -> tuple[int, Message, bytes]:
        try:
            request = Request(url, headers=dict(headers), method=method)  # noqa: S310 - http or https
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                return answer.status, answer.headers, self._whole(answer)
        except HTTPError as error:
            with error:
                return error.code, error.headers, error.read(_MOST_BYTES)
        except URLError as error:
            raise _UnreachableError(f"{self._image.registry} cannot be reached: {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise _UnreachableError(f"{self._image.registry} cannot be reached: {error}") from error
        except ValueError as error:  # a name or an address that cannot be encoded or taken apart
            raise UnresolvedError(f"{self._image.registry} cannot be asked: {error}") from error

    def _whole(self, answer: HTTPResponse) -> bytes:
        """The body. Its hash is the digest, so part of a body is an error."""
        body = answer.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise UnresolvedError(f"{self._image.registry}: its answer is longer than {_MOST_BYTES >> 20} MiB")
        if answer.length:
            raise _UnreachableError(f"{self._image.registry}: the connection ended within its answer")
        return body

    def _refused(self, status: int, body: bytes) -> UnresolvedError:
        """The registry's answer, with the code and message of its first error."""
        text = ""
        try:
            first: dict[str, Any] = json.loads(body)["errors"][0]
            text = ": ".join(str(first[key]) for key in ("code", "message") if first.get(key))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            pass
        message = f"{self._image.registry} answered {status}{f' ({text[:_MOST_WORDS]})' if text else ''}"
        if status in {401, 403}:
            message += f" {'to the pull secret' if self._credentials else 'without credentials'}"
        return _UnreachableError(message) if status == 429 or status >= 500 else UnresolvedError(message)


def _credentials(key: str, entry: Mapping[str, str]) -> Credentials | None:
    user, password = entry.get("username", ""), entry.get("password", "")
    if not user and entry.get("auth"):
        try:
            user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
    host, _, path = re.sub(r"^https?://", "", key).partition("/")
    path = "" if path.strip("/") in {"v1", "v2"} else path.strip("/")
    return Credentials(host, path, user, password) if user else None


def _matches(one: Credentials, image: Image) -> bool:
    """Hosts may have wildcards in their parts, which do not match dots; paths are prefixes."""
    if image.registry in _DOCKER_HUB_NAMES:
        host = one.host in _DOCKER_HUB_NAMES
    else:
        given, wanted = one.host.split("."), image.registry.split(".")
        host = len(given) == len(wanted) and all(map(fnmatchcase, wanted, given))
    return host and (not one.path or f"{image.repository}/".startswith(f"{one.path}/"))


def _is_loopback(host: str) -> bool:
    name = re.sub(r":\d+$", "", host).strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
