"""Hostile clients against the real server: each gets one definite answer, and others do not notice.

Times under load are measured by `python -m bench.cpu.hostile`; here the clients are few and the bounds wide.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from tests.support.waiting import eventually

MODEL = "smollm2"
# Resident bytes of API processes at start, by pid.
AT_START: dict[int, int] = {}
HEAD = b"GET /livez HTTP/1.1\r\nHost: h\r\n"


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key\n")
    server = start("--api-key-file", str(keys), "--stall-seconds", "600")
    server.api.headers["Authorization"] = "Bearer key"
    AT_START[server.process.pid] = resident(server)
    return server


def resident(server) -> int:
    """Bytes of the API process in memory."""
    return psutil.Process(server.process.pid).memory_info().rss


def connected(server, port: str) -> socket.socket:
    url = getattr(server, port).base_url
    return socket.create_connection((url.host, url.port), timeout=60)


def to_the_end(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while chunk := connection.recv(65536):
            answer += chunk
    except ConnectionError:
        pass
    return answer


def error(answer: bytes) -> dict[str, object]:
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize("port", ["api", "admin"])
@pytest.mark.parametrize("line", [b"X-A: " + b"a" * 65_536, b"X-A: a\r\n" * 300_000], ids=["one", "many"])
def test_a_head_without_end_is_431_without_a_key(server, port, line):
    with connected(server, port) as connection:
        began = time.monotonic()
        try:
            connection.sendall(HEAD)
            for _ in range(1600):  # 100 MB
                connection.sendall(line)
        except ConnectionError:
            pass
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 431 "), "the server hung up in time"
    assert error(answer)["code"] == "headers_too_large"
    assert time.monotonic() - began < 30
    assert server.api.get("/livez").status_code == 200


def test_connections_that_keep_the_server_waiting_are_closed_after_ten_seconds(server):
    """Silent, half a request line and half a head, on both ports at once; an idle one after a request stays."""
    halves = {b"": b"", b"GET /liv": b"408", HEAD: b"408"}
    waiting = [(port, half, connected(server, port)) for port in ("api", "admin") for half in halves]
    idle = connected(server, "api")
    idle.sendall(HEAD + b"\r\n")
    assert alive(idle)
    began = time.monotonic()
    for _, half, connection in waiting:
        connection.sendall(half)
    for port, half, connection in waiting:
        with connection:
            answer = to_the_end(connection)
        assert answer[9:12] == halves[half], (port, half)
        assert time.monotonic() - began >= 9
        if half:
            assert error(answer)["code"] == "timeout"
    assert time.monotonic() - began < 30
    idle.sendall(HEAD + b"\r\n")
    assert alive(idle)
    idle.close()


def alive(connection: socket.socket) -> bool:
    """Read one answer of /livez, which may come in parts; True if it is complete and has status 200."""
    answer = b""
    while not answer.endswith(b'{"status":"alive"}'):
        part = connection.recv(65536)
        if not part:
            return False
        answer += part
    return answer.startswith(b"HTTP/1.1 200 ")


def test_clients_that_leave_in_mid_body_are_a_line_each(server):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\n"
    )
    for number in range(20):
        with connected(server, "api") as connection:
            connection.sendall(head + b"X-Request-Id: gone-%d\r\nContent-Length: 1000\r\n\r\n" % number + b'{"model"')
    lines: list[str] = []

    def logged() -> bool:
        lines[:] = [line for line in server.log.splitlines() if "gone-" in line]
        return len(lines) == 20

    eventually(logged)
    assert all("status=499" in line for line in lines)
    assert "Traceback" not in server.log


def test_what_an_empty_server_could_not_accept_is_400_with_the_numbers(server):
    body = {"model": MODEL, "prompt": ["x"] * 128, "n": 128}
    response = server.api.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert "16384 sequences" in response.json()["error"]["message"]


def texts() -> dict[str, tuple[str, dict]]:
    """The worst requests that are within the limit of a body."""
    letters = random.Random(1)
    words = " ".join("".join(letters.choices("abcdefghijklmnop", k=letters.randint(2, 12))) for _ in range(120_000))
    turns = [{"role": "user", "content": words[at * 150 : at * 150 + 140]} for at in range(4096)]
    return {
        "1 MB": ("/v1/completions", {"prompt": words[:1_000_000]}),
        "just below the check of the length": ("/v1/completions", {"prompt": words[:60_000]}),
        "4,096 messages": ("/v1/chat/completions", {"messages": turns}),
        "1,000,000 ids": ("/v1/completions", {"prompt": [12345] * 1_000_000}),
        "128 prompts of 60 kB": ("/v1/completions", {"prompt": [words[at : at + 60_000] for at in range(128)]}),
        "control tokens": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<|im_end|>" * 9000}]}),
    }


def test_long_texts_are_refused_while_others_are_answered(server):
    sent = [(path, json.dumps({"model": MODEL, "max_tokens": 2, **fields})) for path, fields in texts().values()]
    slowest = 0.0
    stop = threading.Event()

    def probe() -> None:
        nonlocal slowest
        with httpx.Client(base_url=server.api.base_url, timeout=30) as client:
            while not stop.wait(0.005):
                began = time.monotonic()
                assert client.get("/livez").status_code == 200
                slowest = max(slowest, time.monotonic() - began)

    def client(number: int) -> list[tuple[int, str]]:
        answers = []
        for path, body in sent[number % len(sent) :] + sent[: number % len(sent)]:
            response = server.api.post(path, content=body, headers={"Content-Type": "application/json"})
            answers.append((response.status_code, response.json()["error"]["code"]))
            if response.status_code == 503:
                assert int(response.headers["Retry-After"]) > 0
        return answers

    prober = threading.Thread(target=probe)
    prober.start()
    with ThreadPoolExecutor(8) as pool:
        answers = [answer for one in pool.map(client, range(8)) for answer in one]
    stop.set()
    prober.join()
    assert set(answers) <= {(400, "context_length_exceeded"), (503, "overloaded")}
    assert (400, "context_length_exceeded") in answers
    assert slowest < 5, "as long as kubelet waits"
    assert server.load()["waiting"] == 0


def test_the_api_process_gives_back_what_the_texts_took(server):
    """After everything above. The bodies were 110 MB, and decoded ten times as much."""
    eventually(lambda: resident(server) - AT_START[server.process.pid] < 64 * 2**20)


def test_an_ordinary_request_is_answered_afterwards(server):
    assert "Paris" in server.chat()["choices"][0]["message"]["content"]
    assert "Traceback" not in server.log
