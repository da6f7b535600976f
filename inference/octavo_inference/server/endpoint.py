"""HTTP endpoints: method, path, handler and message types. A group of endpoints is a folder with its own bodies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.server.errors import ErrorObject
from octavo_inference.server.service import Service

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
# Any endpoint may fail; these come with a body, and with an answer that is generated.
_BODY_ERRORS = (400, 404, 408, 413, 415, 429, 503)
_GENERATION_ERRORS = (504,)


@dataclass(frozen=True, slots=True, eq=False)
class HttpEndpoint:
    """One endpoint. `path` is a Starlette route path; `respond` may raise `ApiError`.

    The other fields describe the endpoint; /openapi.json and docs/reference/http.md are generated from them.
    """

    method: str
    path: str
    respond: Callable[[Service, Request], Awaitable[Response]]
    body: type[msgspec.Struct] | None = None
    """Type of the request body."""
    answer: object = None
    """Type of a response that succeeds. None leaves the endpoint out of /openapi.json."""
    event: object = None
    """Type of one event, if the endpoint can stream."""
    query: type[msgspec.Struct] | None = None
    """A struct with a field for each query parameter."""
    error: type[msgspec.Struct] = ErrorObject
    """Type of an error response."""
    errors: tuple[int, ...] = ()
    """Statuses of error responses besides those in `statuses`. With 504 the endpoint reads the client's timeout."""
    status: int = 200
    """Status of a response that succeeds."""
    media: str = "application/json"
    """Media type of `answer`."""
    example: Mapping[str, object] | None = None
    """An example of `body`, without the field `model`."""
    is_open: bool = False
    """True if the endpoint needs no API key."""

    @property
    def surface(self) -> str:
        """Folder or module of the handler, such as `openai`: the group that the endpoint belongs to."""
        return self.respond.__module__.removeprefix("octavo_inference.server.").partition(".")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the path's parameters."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def url(self) -> str:
        """The path with the parameters as OpenAPI writes them, without convertors."""
        return _PARAMETER.sub(r"{\1}", self.path)

    @property
    def statuses(self) -> tuple[int, ...]:
        """Statuses of all error responses, without that of a missing key."""
        found = {500, *self.errors}
        if self.error is ErrorObject:  # in any format; this one if the request line was not complete
            found.add(431)
        if self.body is not None:
            found.update(_BODY_ERRORS)
        if self.event is not None:
            found.update(_GENERATION_ERRORS)
        return tuple(sorted(found))
