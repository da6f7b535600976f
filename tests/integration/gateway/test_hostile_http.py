"""What strangers may send: every request gets one definite answer, and no pod sees more than it should.

Raw sockets against a gateway process whose pod keeps all bytes that reach it. SEC-3, SEC-5, SEC-19.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.gateway.conftest import KEY, Gateway, RecordingPod, StartGateway
from tests.support.waiting import eventually

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m"}'
# What a smuggler hides behind his request: no pod may ever see it.
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Smuggled: 1\r\nContent-Length: 13\r\n\r\n" + BODY


def head(*lines: bytes, path: str = CHAT, method: str = "POST", version: str = "1.1", key: str = KEY) -> bytes:
    first = f"{method} {path} HTTP/{version}\r\n".encode()
    own = [b"Host: h", b"Content-Type: application/json"]
    own += [b"Authorization: Bearer " + key.encode()] if key else []
    return first + b"".join(line + b"\r\n" for line in [*own, *lines]) + b"\r\n"


def plain(*lines: bytes, body: bytes = BODY, **how: str) -> bytes:
    return head(b"Content-Length: %d" % len(body), *lines, **how) + body


@pytest.fixture(scope="module")
def pod() -> Iterator[RecordingPod]:
    pod = RecordingPod()
    yield pod
    pod.close()


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, pod: RecordingPod, key_file: Path) -> Gateway:
    return start_gateway(
        "--api-key-file", str(key_file), "--head-timeout", "2", "--body-timeout", "2",
        pods=[f"http://127.0.0.1:{pod.port}"],
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh(pod: RecordingPod) -> None:
    pod.seen.clear()
    pod.junk.clear()


def exchange(gateway: Gateway, *pieces: bytes) -> bytes:
    """Send pieces; everything that is answered until the gateway closes, which it must do."""
    with gateway.connect() as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break  # refused already: the answer is there to be read
        return to_the_end(connection)


def to_the_end(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while chunk := connection.recv(65536):
            answer += chunk
    except ConnectionResetError:
        pass
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


def error(answer: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert not re.search(r"aiohttp|llhttp|Traceback|/usr|127\.0\.0\.1", str(found["message"]))
    return found


CHUNKED = b"Transfer-Encoding: chunked"
WRAPPED = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"
MALFORMED = {
    "cl-te": head(b"Content-Length: 13", CHUNKED) + b"0\r\n\r\n",
    "te-cl": head(CHUNKED, b"Content-Length: 13") + WRAPPED,
    "two-lengths": head(b"Content-Length: 13", b"Content-Length: 14") + BODY,
    "one-length-twice": head(b"Content-Length: 13", b"Content-Length: 13") + BODY,
    "list-of-lengths": head(b"Content-Length: 13, 13") + BODY,
    "signed-length": head(b"Content-Length: +13") + BODY,
    "negative-length": head(b"Content-Length: -1") + BODY,
    "hex-length": head(b"Content-Length: 0xd") + BODY,
    "huge-length": head(b"Content-Length: 99999999999999999999999") + BODY,
    "empty-length": head(b"Content-Length:") + BODY,
    "chunked-identity": head(b"Transfer-Encoding: chunked, identity") + WRAPPED,
    "identity-alone": head(b"Transfer-Encoding: identity") + BODY,
    "gzip-alone": head(b"Transfer-Encoding: gzip") + WRAPPED,
    "chunked-twice": head(CHUNKED, CHUNKED) + WRAPPED,
    "chunked-chunked": head(b"Transfer-Encoding: chunked, chunked") + WRAPPED,
    "xchunked": head(b"Transfer-Encoding: xchunked") + WRAPPED,
    "vertical-tab": head(b"Transfer-Encoding: \x0bchunked") + WRAPPED,
    "chunk-extension-lf": head(CHUNKED) + b"d;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk-size-signed": head(CHUNKED) + b"+d\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk-size-0x": head(CHUNKED) + b"0xd\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk-size-huge": head(CHUNKED) + b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk-size-bare-lf": head(CHUNKED) + b"d\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk-too-long": head(CHUNKED) + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "length-as-trailer": head(CHUNKED) + WRAPPED[:-2] + b"Content-Length: 99\r\n\r\n",
    "fold": head(b"X-A: b\r\n folded", b"Content-Length: 13") + BODY,
    "fold-of-length": head(b"Content-Length:\r\n 13") + BODY,
    "bare-lf-everywhere": plain().replace(b"\r\n", b"\n"),
    "bare-lf-inside": head(b"X-A: b\nContent-Length: 13") + BODY,
    "bare-cr": head(b"X-A: b\rContent-Length: 99", b"Content-Length: 13") + BODY,
    "nul-in-value": plain(b"X-A: b\x00c"),
    "nul-in-name": plain(b"X-\x00A: b"),
    "control-in-value": plain(b"X-A: b\x01c"),
    "space-before-colon": head(b"Content-Length : 13") + BODY,
    "tab-before-colon": head(b"Content-Length\t: 13") + BODY,
    "space-before-name": head(b" Content-Length: 13") + BODY,
    "empty-name": plain(b": 1"),
    "no-colon": plain(b"X-A"),
    "space-in-name": plain(b"X A: b"),
    "two-hosts": plain(b"Host: other"),
    "no-host": plain().replace(b"Host: h\r\n", b""),
    "two-types": plain(b"Content-Type: text/plain"),
    "absolute-form": plain(path="http://h/v1/chat/completions"),
    "asterisk": plain(path="*"),
    "no-path": plain(path=""),
    "space-in-path": plain(path="/v1/chat/completions /x"),
    "nul-in-path": plain(path="/v1/chat\x00/completions"),
    "connect": head(path="h:443", method="CONNECT"),
    "http-2.0": plain(version="2.0"),
    "http-1.2": plain(version="1.2"),
    "http-0.9": b"GET /\r\n\r\n",
    "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\x11" * 160,
    "unknown-method": plain(method="SMUGGLE"),
    "lower-method": plain(method="post"),
    "garbage": b"\x00\xff\xfe garbage \r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_can_be_read_in_two_ways_is_refused(gateway: Gateway, pod: RecordingPod, name: str) -> None:
    answer = exchange(gateway, MALFORMED[name] + SMUGGLED)
    assert statuses(answer) == [400]
    assert error(answer)["type"] == "invalid_request_error"
    assert (pod.seen, pod.junk) == ([], [])


@pytest.mark.parametrize("name", MALFORMED)
def test_the_same_byte_by_byte(gateway: Gateway, pod: RecordingPod, name: str) -> None:
    """A parser must not depend on how the network cuts what it reads."""
    data = MALFORMED[name] + SMUGGLED

    def refused() -> bool:
        found = statuses(exchange(gateway, *(data[index : index + 1] for index in range(len(data)))))
        # Who goes on sending to a closed connection may lose the answer to the reset.
        assert found in ([400], [], [408])
        assert (pod.seen, pod.junk) == ([], [])
        # On a busy machine the bytes may take longer than --body-timeout: then the parser has not seen them.
        return found != [408]

    eventually(refused)


TOO_LONG = {
    "one-header": plain(b"X-A: " + b"a" * 9000),
    "one-name": plain(b"a" * 9000 + b": a"),
    "many-headers": plain(*(b"X-%d: a" % index for index in range(200))),
    "just-too-many-headers": plain(*(b"X-%d: a" % index for index in range(97))),
    "all-headers": plain(*(b"X-%d: " % index + b"a" * 4000 for index in range(9))),
    "path": plain(path=CHAT + "?" + "a" * 9000),
    "endless-header": head()[:-2] + b"X-A: " + b"a" * 1_000_000,
    "endless-headers": head()[:-2] + b"X-A: a\r\n" * 100_000,
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_heads_are_bounded(gateway: Gateway, pod: RecordingPod, name: str) -> None:
    answer = exchange(gateway, TOO_LONG[name] + SMUGGLED)
    assert statuses(answer) == [431]
    assert "8190" in str(error(answer)["message"])
    assert (pod.seen, pod.junk) == ([], [])


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_head_is_refused_before_it_is_complete(gateway: Gateway, pod: RecordingPod, path: str) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (index, b"a" * 8000) for index in range(9))

    def refused() -> bool:
        answer = exchange(gateway, f"POST {path} HTTP/1.1\r\nHost: h\r\n".encode(), lines)
        assert statuses(answer) in ([431], [408])
        assert (b'"type":"error"' in answer) == (path == "/v1/messages")
        assert (pod.seen, pod.junk) == ([], [])
        # On a busy machine the head may take longer than the gateway's limit.
        return statuses(answer) == [431]

    eventually(refused)


def test_as_much_as_is_allowed_passes(gateway: Gateway, pod: RecordingPod) -> None:
    lines = [b"X-%d: " % index + b"a" * 300 for index in range(95)]
    assert statuses(exchange(gateway, plain(*lines, b"Connection: close"))) == [200]
    (request,) = pod.seen
    assert request.header("X-94") == ["a" * 300]


def last(request: bytes) -> bytes:
    """The same with a request to close, so that the answer ends."""
    return request.replace(b"\r\nContent-Type:", b"\r\nConnection: close\r\nContent-Type:", 1)


# Well-formed, and meant to be taken for something else: the answer, and how many requests a pod may see.
ODD = {
    "double-slash": (plain(path="//v1/chat/completions"), 404, 0),
    "dot-dot": (plain(path="/v1/../v1/chat/completions"), 404, 0),
    "dot": (plain(path="/v1/./chat/completions"), 404, 0),
    "encoded-dots": (plain(path="/v1/%2e%2e/v1/chat/completions"), 404, 0),
    "encoded-slash": (plain(path="/v1%2fchat/completions"), 404, 0),
    "encoded-nul": (plain(path="/v1/chat/completions%00"), 404, 0),
    "encoded-letter": (plain(path="/v1/chat/%63ompletions"), 200, 1),
    "capitals": (plain(path="/V1/chat/completions"), 404, 0),
    "trailing-slash": (plain(path="/v1/chat/completions/"), 404, 0),
    "semicolon": (plain(path="/v1/chat/completions;x=1"), 404, 0),
    "backslash": (plain(path="/v1\\chat\\completions"), 404, 0),
    "query": (plain(path="/v1/chat/completions?a=%0d%0aX:1#/livez"), 200, 1),
    "admin": (plain(path="/v1/octavo/load"), 404, 0),
    "get": (plain(method="GET"), 405, 0),
    "put": (plain(method="PUT"), 405, 0),
    "trace": (plain(method="TRACE"), 405, 0),
    "options": (plain(method="OPTIONS"), 405, 0),
    "delete": (plain(method="DELETE"), 405, 0),
    "override": (plain(b"X-HTTP-Method-Override: GET"), 200, 1),
    "host-path": (plain().replace(b"Host: h", b"Host: localhost/livez?"), 200, 1),
    "host-fragment": (plain().replace(b"Host: h", b"Host: x#/"), 200, 1),
    "host-brackets": (plain().replace(b"Host: h", b"Host: [::1]/livez?"), 200, 1),
    "host-empty": (plain().replace(b"Host: h", b"Host:"), 200, 1),
    "forwarded": (plain(b"X-Forwarded-Prefix: /livez", b"X-Original-URL: /livez", b"Forwarded: host=a"), 200, 1),
    "upgrade-websocket": (plain(b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"), 200, 1),
    "upgrade-h2c": (plain(b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"), 200, 1),
    "expect-other": (plain(b"Expect: 200-ok"), 417, 0),
    "http-1.0": (plain(version="1.0"), 200, 1),
    "http-1.0-no-host": (plain(version="1.0").replace(b"Host: h\r\n", b""), 200, 1),
    "no-length": (head(), 400, 0),
    "text": (plain().replace(b"application/json", b"text/plain"), 415, 0),
    "gzip": (plain(b"Content-Encoding: gzip", body=b"\x1f\x8b" + b"\0" * 30), 415, 0),
    "no-utf-8": (plain(body=b'{"model":"\xff"}'), 400, 0),
    "deep": (plain(body=b'{"model":"m","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), 400, 0),
    "deep-objects": (plain(body=b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001), 400, 0),
    "chunked": (head(CHUNKED) + WRAPPED, 200, 1),
    "chunk-extension": (head(CHUNKED) + b"d;a=b\r\n" + BODY + b"\r\n0\r\n\r\n", 200, 1),
    "trailers": (head(CHUNKED) + b"d\r\n" + BODY + b"\r\n0\r\nX-A: b\r\nX-Octavo-Tenant: spoofed\r\n\r\n", 200, 1),
    "obs-text": (plain(b"X-A: \xff\xfe"), 200, 1),
    "internal": (plain(b"X-Octavo-Tenant: spoofed", b"X-Octavo-Draining: 1"), 200, 1),
    "tab-in-value": (plain(b"X-A: a\tb"), 200, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_oddities_are_answered_once_and_reach_a_pod_plainly(gateway: Gateway, pod: RecordingPod, name: str) -> None:
    request, status, reaching = ODD[name]
    answer = exchange(gateway, last(request))
    assert statuses(answer) == [status]
    assert (len(pod.seen), pod.junk) == (reaching, [])
    for seen in pod.seen:
        assert (seen.line, seen.body) == ("POST /v1/chat/completions HTTP/1.1", BODY)
        names = [name.lower() for name, _ in seen.headers]
        assert len(set(names)) == len(names)
        assert not {"upgrade", "transfer-encoding", "expect", "forwarded", "authorization"} & set(names)
        # Only the gateway's own word on whose request it is, whatever the client said of it.
        own = {"x-octavo-tenant", "x-octavo-priority", "x-octavo-want-prompt"}
        assert {name for name in names if name.startswith("x-octavo-")} <= own
        assert "spoofed" not in seen.header("X-Octavo-Tenant")
    if status >= 400:
        error(answer)


@pytest.mark.parametrize("name", [name for name, (_, status, _) in ODD.items() if status != 200])
def test_without_a_key_nothing_else_is_said(gateway: Gateway, pod: RecordingPod, name: str) -> None:
    request = last(ODD[name][0]).replace(b"Authorization: Bearer alpha\r\n", b"")
    answer = exchange(gateway, request)
    assert statuses(answer) == [401]
    assert error(answer)["code"] == "missing_api_key"
    assert (pod.seen, pod.junk) == ([], [])


def test_a_slow_head_ends_in_time(gateway: Gateway, pod: RecordingPod) -> None:
    """Slowloris: a header now and then keeps no connection. Answers of its first kind are from an idle connection."""
    with gateway.connect() as connection:
        connection.sendall(head()[:-2])
        answer = b""
        connection.settimeout(0.1)
        while not answer:
            connection.sendall(b"X-A: b\r\n")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        connection.settimeout(30)
        answer += to_the_end(connection)
    assert statuses(answer) == [408]
    assert "head" in str(error(answer)["message"])
    assert (pod.seen, pod.junk) == ([], [])


def test_a_slow_second_head_ends_in_time(gateway: Gateway, pod: RecordingPod) -> None:
    with gateway.connect() as connection:
        connection.sendall(plain())
        assert statuses(connection.recv(65536)) == [200]
        connection.sendall(b"POST /v1/chat/comp")
        assert statuses(to_the_end(connection)) == [408]
    assert len(pod.seen) == 1


def test_a_slow_body_ends_in_time(gateway: Gateway, pod: RecordingPod) -> None:
    answer = exchange(gateway, plain()[:-1])
    assert statuses(answer) == [408]
    assert "body" in str(error(answer)["message"])
    assert (pod.seen, pod.junk) == ([], [])


def test_a_body_that_never_comes_to_its_end(gateway: Gateway, pod: RecordingPod) -> None:
    with gateway.connect() as connection:
        connection.sendall(plain()[:-1])
    assert statuses(exchange(gateway, last(plain()))) == [200]
    assert len(pod.seen) == 1


def test_a_silent_connection_is_closed_without_an_answer(gateway: Gateway) -> None:
    started = time.monotonic()
    assert exchange(gateway) == b""
    assert time.monotonic() - started >= 1.9


def test_a_connection_may_rest_after_a_request(gateway: Gateway) -> None:
    """Load balancers keep connections; the time-out of the next head begins with its first byte."""
    with gateway.connect() as connection:
        connection.sendall(plain())
        assert statuses(connection.recv(65536)) == [200]
        connection.settimeout(2.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.sendall(last(plain()))
        connection.settimeout(30)
        assert statuses(to_the_end(connection)) == [200]


def test_a_client_that_leaves_in_mid_body_is_one_line(gateway: Gateway, pod: RecordingPod) -> None:
    with gateway.connect() as connection:
        connection.sendall(plain(b"X-Request-Id: left-early")[:-1])

    def logged() -> list[dict[str, str]]:
        return [line for line in gateway.logged() if line.get("request_id") == "left-early"]

    eventually(lambda: bool(logged()))
    [line] = logged()
    assert (line["level"].lower(), line["status"]) == ("info", 499)
    assert (pod.seen, pod.junk) == ([], [])


def test_too_long_bodies_are_refused_by_their_length(gateway: Gateway, pod: RecordingPod) -> None:
    answer = exchange(gateway, head(b"Content-Length: 9000000", b"Connection: close"))
    assert statuses(answer) == [413]
    assert "8388608" in str(error(answer)["message"])
    assert (pod.seen, pod.junk) == ([], [])


def test_too_long_bodies_are_refused_while_they_come(gateway: Gateway, pod: RecordingPod) -> None:
    before = gateway.resident()
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    answer = exchange(gateway, last(head(CHUNKED)), *([piece] * 9), b"0\r\n\r\n")
    assert statuses(answer) in ([413], [])  # the reset may overtake it
    assert (pod.seen, pod.junk) == ([], [])
    assert gateway.resident() - before < 4 * 8 * 1024 * 1024


def test_a_storm_of_tiny_chunks_is_cut_off(gateway: Gateway, pod: RecordingPod) -> None:
    storm = head(CHUNKED) + b"1\r\na\r\n" * 5_000_000
    with gateway.connect() as connection:
        for start in range(0, len(storm), 65536):
            try:
                connection.sendall(storm[start : start + 65536])
            except OSError:
                break
        answer = to_the_end(connection)
    assert start < len(storm) // 2, "the storm was listened to"
    assert statuses(answer) in ([400], [])
    assert (pod.seen, pod.junk) == ([], [])


def test_bodies_of_ordinary_chunks_pass(gateway: Gateway, pod: RecordingPod) -> None:
    body = b'{"model":"m","x":"' + b"a" * 100_000 + b'"}'
    chunks = b"".join(b"10\r\n" + body[at : at + 16] + b"\r\n" for at in range(0, len(body) // 16 * 16, 16))
    left = body[len(body) // 16 * 16 :]
    end = b"%x\r\n" % len(left) + left + b"\r\n0\r\n\r\n"
    assert statuses(exchange(gateway, last(head(CHUNKED)) + chunks + end)) == [200]
    assert pod.seen[0].body == body


def test_requests_sent_ahead_are_answered_in_order(gateway: Gateway, pod: RecordingPod) -> None:
    answer = exchange(gateway, plain() + plain(path="/v1/audio/speech") + plain(b"X-Third: 1") + last(plain()))
    assert statuses(answer) == [200, 404, 200, 200]
    assert [len(request.header("X-Third")) for request in pod.seen] == [0, 1, 0]


def test_a_refusal_ends_what_was_sent_ahead(gateway: Gateway, pod: RecordingPod) -> None:
    answer = exchange(gateway, plain() + MALFORMED["cl-te"] + SMUGGLED)
    assert statuses(answer)[-1] == 400
    assert len(pod.seen) <= 1
    assert not [seen for seen in pod.seen if seen.header("X-Smuggled")]


def test_a_flood_of_requests_sent_ahead_is_read_as_it_is_answered(gateway: Gateway, pod: RecordingPod) -> None:
    answer = exchange(gateway, plain() * 300 + last(plain()))
    assert statuses(answer) == [200] * 301
    assert len(pod.seen) == 301


def test_a_client_that_asks_first_is_told_to_go_on(gateway: Gateway, pod: RecordingPod) -> None:
    with gateway.connect() as connection:
        connection.sendall(last(head(b"Content-Length: 13", b"Expect: 100-continue")))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert statuses(to_the_end(connection)) == [200]
    assert len(pod.seen) == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head(b"Content-Length: 13", b"Expect: 100-continue", key=""), 401),
        (head(b"Content-Length: 9000000", b"Expect: 100-continue"), 413),
        (head(b"Content-Length: 13", b"Expect: 100-continue", b"Content-Encoding: gzip"), 415),
    ],
    ids=["key", "length", "encoding"],
)
def test_a_client_that_asks_first_is_refused_first(gateway: Gateway, request_bytes: bytes, status: int) -> None:
    assert statuses(exchange(gateway, last(request_bytes))) == [status]


@pytest.mark.parametrize("key", ["", "wrong", "alpha beta", "alph", "alphaa", "\xff"])
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/models/m", "/version", "/nope", "//livez", "/livez/"])
def test_only_a_right_key_opens(gateway: Gateway, pod: RecordingPod, path: str, key: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = exchange(gateway, last(plain(path=path, method=method, key=key)))
        assert statuses(answer) == [401]
    assert (pod.seen, pod.junk) == ([], [])


def test_the_gateway_is_well_after_all_this(gateway: Gateway, pod: RecordingPod) -> None:
    """Nothing of a stranger's bytes is logged line by line, nothing is left over."""
    exchange(gateway, MALFORMED["cl-te"])
    end = time.monotonic() + 30
    while (models := gateway.report()["models"]) and models[0]["in_flight"] and time.monotonic() < end:  # type: ignore[index]
        time.sleep(0.05)
    assert models[0]["in_flight"] == 0  # type: ignore[index]
    assert gateway.metric("octavo_gateway_malformed_requests_total") > 0
    assert [line for line in gateway.logged() if line["level"] in {"warning", "error"}] == []
    assert statuses(exchange(gateway, last(plain()))) == [200]


def test_nothing_internal_crosses_in_either_direction(start_gateway: StartGateway) -> None:
    pod = RecordingPod(
        extra=b"X-Octavo-Prompt: secret\r\nx-octavo-tenant: t\r\nServer: s\r\nSet-Cookie: a=b\r\nX-Hop: 1\r\n"
        b"Connection: X-Hop\r\nX-Kept: 1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    )
    gateway = start_gateway(pods=[f"http://127.0.0.1:{pod.port}"])
    parent = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    sent = [b"X-Octavo-Tenant: mine", b"X-OCTAVO-Priority: 9", b"X-Hop: 1", b"X-Kept: 1", b"Cookie: a=b", parent]
    answer = exchange(gateway, plain(b"Connection: close, X-Hop", *sent, b"X-Request-Id: mine", b"X-Api-Key: k"))
    pod.close()
    assert statuses(answer) == [200]
    names = [line.partition(b":")[0].lower() for line in answer.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
    assert sorted(names) == sorted(
        [b"content-type", b"x-kept", b"traceparent", b"x-request-id", b"content-length", b"date", b"connection"]
    )
    (request,) = pod.seen
    assert sorted(name.lower() for name, _ in request.headers) == [
        "accept", "content-length", "content-type", "host", "traceparent", "x-kept", "x-octavo-want-prompt",
        "x-request-id",
    ]  # fmt: skip
    assert request.header("X-Request-Id") == ["mine"]
