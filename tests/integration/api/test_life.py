"""How a server starts, drains and dies: statuses, last words, and no stream that ends without saying why."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tests.support.waiting import eventually

from octavo_inference.engine.output_router import LOST, SHUTTING_DOWN


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "octavo_inference", *flags]


class Reader:
    """A stream read in the background."""

    def __init__(self, server, **fields):
        self.text = ""
        self.began = threading.Event()
        self.thread = threading.Thread(
            target=self._read, args=(server, server.body(stream=True, **fields)), daemon=True
        )
        self.thread.start()
        assert self.began.wait(60)

    def _read(self, server, body):
        with server.api.stream("POST", "/v1/chat/completions", json=body) as response:
            for piece in response.iter_text():
                self.text += piece
                if '"content":"' in self.text:
                    self.began.set()

    def finish(self) -> str:
        self.thread.join(120)
        assert not self.thread.is_alive()
        return self.text


class Whole:
    """A request for a whole answer, in the background: no byte of its response is sent before the end."""

    def __init__(self, server):
        before = server.load()["requests"]
        self.response = None
        self.thread = threading.Thread(target=self._send, args=(server,), daemon=True)
        self.thread.start()
        eventually(lambda: server.load()["requests"] > before)

    def _send(self, server):
        body = server.body(content="Count forever.", max_tokens=900, ignore_eos=True)
        self.response = server.api.post("/v1/chat/completions", json=body)

    def is_refused(self, message: str) -> None:
        """It got a 503 that says when to try again, and nothing about the inside of the server."""
        self.thread.join(120)
        error = self.response.json()["error"]
        assert (self.response.status_code, error["code"], error["message"]) == (503, "engine_unavailable", message)
        assert int(self.response.headers["retry-after"]) > 0


def test_a_full_queue_refuses_at_once_and_those_let_in_are_answered(start):
    server = start("--max-running-requests", "1", "--max-queued-requests", "1")
    running = Reader(server, max_tokens=300, ignore_eos=True)
    waiting = threading.Thread(target=server.chat, kwargs={"max_tokens": 4}, daemon=True)
    waiting.start()
    eventually(lambda: server.load()["waiting"] == 1)
    refused = [server.api.post("/v1/chat/completions", json=server.body(stream=stream)) for stream in (False, True)]
    report = server.load()
    text = running.finish()
    waiting.join(120)
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [(503, "overloaded")] * 2
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
    assert (report["running"], report["waiting"]) == (1, 1)
    assert text.endswith("data: [DONE]\n\n")
    assert server.load()["requests"] == 3, "warm-up and the two that were let in"


def test_sigterm_lets_streams_finish(start):
    server = start()
    stream = Reader(server, content="Count to one thousand.", max_tokens=200, ignore_eos=True)
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 30
    while server.api.get("/readyz").status_code == 200:
        assert time.monotonic() < deadline
    refused = server.api.post("/v1/chat/completions", json=server.body())
    report = server.load()
    text = stream.finish()
    assert server.process.wait(60) == 0
    assert (refused.status_code, refused.headers["x-octavo-draining"]) == (503, "1")
    assert (report["draining"], report["ready"]) == (True, False)
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text


def test_a_drain_has_an_end(start):
    server = start("--drain-timeout", "0.5")
    stream = Reader(server, content="Count forever.", max_tokens=900, ignore_eos=True)
    whole = Whole(server)
    server.process.send_signal(signal.SIGTERM)
    last = [block for block in stream.finish().split("\n\n") if block][-1]
    assert server.process.wait(60) == 0
    whole.is_refused(SHUTTING_DOWN)
    assert "drain timeout of 0.5 s: 2 sequences are cut" in server.log
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == SHUTTING_DOWN


def test_a_second_signal_ends_at_once(start):
    server = start()
    stream = Reader(server, content="Count forever.", max_tokens=900, ignore_eos=True)
    whole = Whole(server)
    server.process.send_signal(signal.SIGTERM)
    while "draining" not in server.log:
        assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert SHUTTING_DOWN in stream.finish()
    whole.is_refused(SHUTTING_DOWN)
    assert server.process.wait(60) == 0


def test_a_killed_engine_is_told_to_every_stream(start):
    server = start()
    streams = [Reader(server, content="Count forever.", max_tokens=900, ignore_eos=True) for _ in range(3)]
    whole = Whole(server)
    server.engine.kill()
    whole.is_refused(LOST)
    for stream in streams:
        last = [block for block in stream.finish().split("\n\n") if block][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == LOST, "the cause is for the operator"
        assert "[DONE]" not in stream.text
    assert server.process.wait(60) == 1
    assert "the engine process was killed by SIGKILL" in server.log


def test_a_hang_is_noticed(start):
    server = start("--stall-seconds", "4")
    stream = Reader(server, content="Count forever.", max_tokens=900, ignore_eos=True)
    server.engine.suspend()
    assert LOST in stream.finish()
    assert server.process.wait(60) == 70
    assert "no step for 4 s with 1 sequences pending; its process is stopped" in server.log
    assert "stacks are in the log" not in server.log


def test_the_engine_does_not_outlive_its_server(start):
    server = start()
    engine = server.engine
    server.process.kill()
    server.process.wait()
    assert psutil.wait_procs([engine], timeout=30)[1] == []


def test_drain_by_post_keeps_the_process(start):
    server = start()
    assert server.admin.post("/v1/octavo/drain").json() == {"draining": True}
    assert server.api.get("/readyz").status_code == 503
    assert server.api.get("/livez").status_code == 200
    assert server.load()["draining"] is True
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0


def test_a_failing_step_fails_its_requests_only(start):
    server = start(environment={"OCTAVO_FAILPOINTS": "engine.step:raise@5"})
    body = server.body(max_tokens=20, ignore_eos=True)
    first = server.api.post("/v1/chat/completions", json=body)
    second = server.api.post("/v1/chat/completions", json=body)
    assert (first.status_code, first.json()["error"]["code"]) == (500, "engine_error")
    assert (second.status_code, second.json()["usage"]["completion_tokens"]) == (200, 20)
    assert server.load()["blocks_pinned"] == 0


def test_keys(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-one\nsecret-two\n")
    server = start("--api-key-file", str(keys), "--log-format", "json")
    assert server.api.get("/v1/models").status_code == 401
    assert server.api.get("/livez").status_code == 200
    assert server.api.get("/v1/models", headers={"authorization": "Bearer secret-two"}).status_code == 200
    everything = server.log + " ".join(psutil.Process(server.process.pid).cmdline())
    assert "secret" not in everything
    assert all(json.loads(line)["level"] for line in server.log.splitlines())


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--max-model-len", "5"], 2, ["--max-model-len", "5", "16"]),
        (["--model", "/no/such/model"], 1, ["/no/such/model", "no such file or folder"]),
        (["--max-model-len", "100000"], 1, ["100000", "8192"]),
        (["--api-key-file", "/no/such/file"], 2, ["--api-key-file", "/no/such/file"]),
    ],
)
def test_mistakes_are_told_in_one_line(flags, status, words):
    result = subprocess.run(
        command("--port", "0", "--admin-port", "0", *flags), capture_output=True, text=True, timeout=120, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == status
    assert all(word in last for word in words)
    assert "Traceback" not in result.stderr


def test_a_taken_port_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(command("--port", str(port)), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr.strip().endswith(
        f"--port: cannot listen on 127.0.0.1:{port}: Address already in use; use another"
    )
