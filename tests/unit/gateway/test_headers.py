"""Which headers cross the gateway, each way."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from octavo_gateway.http.headers import request_id, to_client, to_pod

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

BOTH_WAYS = [
    "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer",
    "Transfer-Encoding", "Upgrade", "X-Octavo-Tenant", "X-OCTAVO-Draining", "x-octavo-", "X-Octavo-Prompt",
    "Content-Length",
]  # fmt: skip
ONLY_TO_CLIENTS = [
    "Authorization", "X-Api-Key", "Api-Key", "Cookie", "Host", "Content-Encoding", "Accept-Encoding", "Expect",
    "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip",
]  # fmt: skip
ONLY_TO_PODS = ["Date", "Server", "Set-Cookie"]


@pytest.mark.parametrize("name", BOTH_WAYS + ONLY_TO_CLIENTS)
@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
def test_what_no_pod_gets(name, spelling):
    passed = to_pod(CIMultiDict([("X-A", "b"), (spelling(name), "x"), (name, "y")]), "1")
    assert passed == CIMultiDict({"X-A": "b", "X-Request-Id": "1"})


@pytest.mark.parametrize("name", BOTH_WAYS + ONLY_TO_PODS)
@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
def test_what_no_client_gets(name, spelling):
    passed = to_client(CIMultiDict([("X-A", "b"), (spelling(name), "x"), (name, "y")]), "1")
    assert passed == CIMultiDict({"X-A": "b", "X-Request-Id": "1"})


@pytest.mark.parametrize("cross", [to_pod, to_client])
@pytest.mark.parametrize("named", ["X-A", "x-a", "close, X-A", "close ,\tx-a ,", ", X-A"])
def test_what_connection_names_stays_behind(cross, named):
    passed = cross(CIMultiDict([("Connection", named), ("X-A", "1"), ("X-B", "2")]), "1")
    assert passed == CIMultiDict({"X-B": "2", "X-Request-Id": "1"})


@pytest.mark.parametrize("cross", [to_pod, to_client])
def test_connection_may_come_twice(cross):
    passed = cross(CIMultiDict([("Connection", "X-A"), ("connection", "X-B"), ("X-A", "1"), ("X-B", "2")]), "1")
    assert passed == CIMultiDict({"X-Request-Id": "1"})


@pytest.mark.parametrize("cross", [to_pod, to_client])
@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": PARENT},
        {"TraceParent": PARENT, "TraceState": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"},
        {"traceparent": PARENT.replace("00-", "cc-", 1) + "-what-the-future-will-be-like"},
        {"baggage": "userId=alice,serverNode=DF%2028;p=1"},
        {"b3": "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90"},
        {"X-B3-TraceId": "80f198ee56343ba864fe8b2a57d3eff7", "X-B3-SpanId": "e457b5a2e4d86bd1", "X-B3-Sampled": "1"},
        {"X-B3-ParentSpanId": "05e3ac9a4f6e3b90", "X-B3-Flags": "1"},
        {"uber-trace-id": "1:2:0:1", "X-Amzn-Trace-Id": "Root=1-2-3", "Server-Timing": "a;dur=1"},
    ],
)
def test_tracing_goes_through(cross, headers):
    assert cross(CIMultiDict(headers), "1") == CIMultiDict(headers | {"X-Request-Id": "1"})


@pytest.mark.parametrize("cross", [to_pod, to_client])
@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": ""},
        {"traceparent": PARENT.upper()},
        {"traceparent": PARENT[:-1]},
        {"traceparent": PARENT + "-1"},
        {"traceparent": PARENT.replace("00-", "ff-", 1)},
        {"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01"},
        {"traceparent": PARENT + "\u0661"},
        {"traceparent": "x", "tracestate": "a=b"},
        {"tracestate": "a=b"},
        {"baggage": "a=" + "b" * 4096},
        {"baggage": "a=\x01"},
        {"b3": "a b"},
        {"b3": "a" * 129},
        {"X-B3-TraceId": "a;b"},
    ],
)
def test_malformed_tracing_is_dropped(cross, headers):
    assert cross(CIMultiDict({"X-A": "b"} | headers), "1") == CIMultiDict({"X-A": "b", "X-Request-Id": "1"})


@pytest.mark.parametrize("cross", [to_pod, to_client])
def test_two_parents_are_none_and_a_long_state_leaves_the_parent(cross):
    assert cross(CIMultiDict([("traceparent", PARENT), ("traceparent", PARENT)]), "1") == {"X-Request-Id": "1"}
    passed = cross(CIMultiDict([("traceparent", PARENT), *[("tracestate", "a=" + "b" * 200)] * 3]), "1")
    assert passed == {"traceparent": PARENT, "X-Request-Id": "1"}
    split = CIMultiDict([("traceparent", PARENT), ("tracestate", "a=b"), ("tracestate", "c=d")])
    assert cross(split, "1").getall("tracestate") == ["a=b", "c=d"]


def test_no_parent_is_made_up():
    assert to_pod(CIMultiDict(), "1") == {"X-Request-Id": "1"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a-b_c.1", True), ("a" * 128, True), ("a" * 129, False), ("", False), ("a b", False), ("\xe4", False)],
)
def test_request_ids(given, kept):
    assert request_id(CIMultiDict({"X-Request-Id": given}), lambda: "fresh") == (given if kept else "fresh")
