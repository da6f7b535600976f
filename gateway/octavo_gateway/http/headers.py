"""Selects the headers that the gateway forwards. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from multidict import CIMultiDict, MultiMapping

from octavo_protocol.names import HEADER_PREFIX, HEADER_PRIORITY, HEADER_REQUEST_ID, HEADER_TENANT, HEADER_TIMEOUT

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
# Credentials of clients never reach a pod. The gateway sends the body itself and has to read the answer, so it sets
# lengths, encodings and `Expect` itself.
NOT_TO_POD = HOP_BY_HOP | {
    "authorization", "x-api-key", "api-key", "cookie", "host", "content-length", "content-encoding",
    "accept-encoding", "expect", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
}  # fmt: skip
NOT_TO_CLIENT = HOP_BY_HOP | {"content-length", "date", "server", "set-cookie"}

# Tracing headers pass in both directions if they are valid: a trace that a pod cannot parse is worse than none. The
# gateway creates no tracing header, because it has no tracer, and an unrecorded span breaks the trace.
# W3C Trace Context, sections 3.2 and 3.3; W3C Baggage, section 3.3; B3 propagation.
_ID = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_B3 = r"[0-9A-Za-z-]{1,128}"
_TRACING = {
    "traceparent": re.compile(rf"(?:00{_ID}|(?!00|ff)[0-9a-f]{{2}}{_ID}(?:-[!-~]{{1,128}})?)\Z"),
    "tracestate": re.compile(r"[ -~]{1,512}\Z"),
    "baggage": re.compile(r"[ -~]{1,4096}\Z"),
} | {
    name: re.compile(rf"{_B3}\Z")
    for name in ("b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags")
}  # fmt: skip

# The server's bounds, in seconds.
MIN_TIMEOUT, MAX_TIMEOUT = 0.001, 86400.0
_TIMEOUT = re.compile(r"\d{1,6}(\.\d{1,6})?\Z")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


def to_pod(headers: MultiMapping[str], request_id: str, tenant: str = "", priority: int = 0) -> CIMultiDict[str]:
    """Headers of the request to the pod. An empty `tenant` sends neither tenant nor priority."""
    passed = _without(headers, NOT_TO_POD)
    passed[HEADER_REQUEST_ID] = request_id
    if tenant:
        passed[HEADER_TENANT] = tenant
        passed[HEADER_PRIORITY] = str(priority)
    return passed


def to_client(headers: MultiMapping[str], request_id: str) -> CIMultiDict[str]:
    """Headers of the answer to the client."""
    passed = _without(headers, NOT_TO_CLIENT)
    passed[HEADER_REQUEST_ID] = request_id
    return passed


def timeout(headers: MultiMapping[str]) -> float | None:
    """The client's time limit for the request in seconds; None if missing, or if the pod will refuse the value."""
    given = headers.getall(HEADER_TIMEOUT, [])
    if len(given) != 1 or not _TIMEOUT.match(given[0]) or not MIN_TIMEOUT <= float(given[0]) <= MAX_TIMEOUT:
        return None
    return float(given[0])


def request_id(headers: MultiMapping[str], fresh: Callable[[], str]) -> str:
    """The client's request id if it is safe in logs and headers, else a fresh one."""
    given = headers.get(HEADER_REQUEST_ID, "")
    return given if _REQUEST_ID.match(given) else fresh()


def _without(headers: MultiMapping[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in ",".join(headers.getall("Connection", [])).split(",")}
    passed = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in dropped and lower not in named and not lower.startswith(HEADER_PREFIX)
    )
    for name, pattern in _TRACING.items():
        if name in passed and not pattern.match(",".join(passed.getall(name))):
            del passed[name]
    if "tracestate" in passed and "traceparent" not in passed:
        del passed["tracestate"]
    return passed
