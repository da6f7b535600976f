"""Adapters that servers load and unload while a gateway process runs: models come and go with load reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec
import openai
import pytest
from tests.integration.gateway.conftest import StartGateway
from tests.support.waiting import eventually

from octavo_protocol.adapters import AdapterReport, AdapterState
from octavo_protocol.load import LoadReport, encode

NUMBERS = [one.name for one in msgspec.structs.fields(LoadReport) if one.type is int]


@dataclass
class AdapterPod:
    """A pod that reports `adapters`; `seen`: the models of its requests. One port serves as both of a pod's."""

    adapters: dict[str, AdapterState] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}|{self.port}"

    def report(self) -> bytes:
        fixed = {"start_time": 1.0, "model": "m", "oldest_wait": 0.0, "ready": True, "draining": False}
        sizes = {"block_size": 16, "blocks_total": 4096, "max_running": 64, "max_batched_tokens": 512}
        adapters = [AdapterReport(name=name, state=state, failure="no file") for name, state in self.adapters.items()]
        return encode(LoadReport(**dict.fromkeys(NUMBERS, 0) | fixed | sizes, adapters=adapters))


def handler(pod: AdapterPod) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(pod.report())

        def do_POST(self) -> None:
            model = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"]
            pod.seen.append(model)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
            self.answer(json.dumps(answer).encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def pods() -> Iterator[Callable[[], AdapterPod]]:
    servers = []

    def make() -> AdapterPod:
        pod = AdapterPod()
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(pod))
        pod.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return pod

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_adapters_come_and_go_with_load_reports(pods: Callable[[], AdapterPod], start_gateway: StartGateway) -> None:
    one, other = pods(), pods()
    gateway = start_gateway(pods=[one.address, other.address])
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:

        def listed() -> list[str]:
            return [model.id for model in client.models.list().data]

        def ask(number: int) -> str:
            text = f"Question {number}. " + "word " * 60
            return client.chat.completions.create(model="sql", messages=[{"role": "user", "content": text}]).model

        assert listed() == ["m"]
        with pytest.raises(openai.NotFoundError):
            ask(0)

        one.adapters, other.adapters = {"sql": "loaded"}, {"sql": "cached"}
        eventually(lambda: gateway.metric("octavo_gateway_adapter_replicas") == 2, 30)
        assert listed() == ["m", "sql"]
        assert {ask(number) for number in range(20)} == {"sql"}
        # The other one would get a request only while the first is busy.
        assert (len(one.seen), len(other.seen)) == (20, 0)

        one.adapters = {}
        eventually(lambda: gateway.metric("octavo_gateway_adapter_replicas") == 1, 30)
        ask(21)
        assert other.seen == ["sql"]

        other.adapters = {"sql": "failed"}
        eventually(
            lambda: httpx.post(gateway.url + "/v1/chat/completions", json={"model": "sql"}).status_code == 503, 30
        )
        with pytest.raises(openai.InternalServerError, match="Its operators have to act"):
            ask(22)

        other.adapters = {}
        eventually(lambda: listed() == ["m"], 30)
        assert gateway.metric("octavo_gateway_rejected_reports_total") == 0
