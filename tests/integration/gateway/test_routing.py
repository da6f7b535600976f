"""Conversations through gateway processes to two servers with real weights: they find their blocks again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.integration.gateway.conftest import Gateway, StartGateway
from tests.support.native import require_native
from tests.support.ports import free_port
from tests.support.servers import until_ready
from tests.support.waiting import eventually

TURNS, CONVERSATIONS = 3, 3
BLOCK = 32
WORDS = ("copper", "river", "lantern", "orchard", "velvet", "thunder", "marble", "compass", "willow", "ember", "harbor")


@dataclass
class Server:
    """An `octavo-server` process."""

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    log: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}|{self.admin_port}"

    def load(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.admin_port}/v1/octavo/load", timeout=30).json()
        return found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    require_native()
    found = []
    for _ in range(2):
        port, admin = free_port(), free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        sizes = ["--max-model-len", "2048", "--kv-memory", "256Mi", "--threads", "1", "--served-model-name", "m"]
        command = [sys.executable, "-m", "octavo_inference", "--port", str(port), "--admin-port", str(admin), *sizes]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ)
        found.append(Server(process, port, admin, log))
    try:
        for server in found:
            until_ready(server.process, f"http://127.0.0.1:{server.port}", server.log)
        yield found
    finally:
        for server in found:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()


def prose(seed: int, words: int) -> str:
    """Words in an order of their own; no two seeds begin alike."""
    return f"Story {seed}. " + " ".join(WORDS[(i * (seed % 7 + 3) + i // 9) % len(WORDS)] for i in range(words))


def chat(gateway: Gateway, messages: list[dict[str, str]]) -> tuple[str, int, int]:
    """An answer, the tokens of its prompt, and those that were cached."""
    body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0}
    response = httpx.post(gateway.url + "/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    assert not [name for name in response.headers if name.startswith("x-octavo")]
    answer = response.json()
    usage = answer["usage"]
    text: str = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def series(gateway: Gateway, name: str) -> dict[str, float]:
    """A metric by its `kind`."""
    text = httpx.get(f"http://127.0.0.1:{gateway.admin_port}/metrics", timeout=30).text
    found = re.findall(rf'^{name}{{[^}}]*kind="(\w+)"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return {kind: float(value) for kind, value in found}


def converse(gateway: Gateway, servers: list[Server], first: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Conversations turn by turn: which servers answered them, cached tokens, and prompt tokens of the turn before."""
    histories = [[{"role": "user", "content": prose(first + n, 120)}] for n in range(CONVERSATIONS)]
    places: list[list[int]] = [[] for _ in histories]
    cached: list[list[int]] = [[] for _ in histories]
    before = [0] * CONVERSATIONS
    for turn in range(TURNS):
        for n, history in enumerate(histories):
            counts = [server.load()["requests"] for server in servers]
            text, tokens, hit = chat(gateway, history)
            now = [server.load()["requests"] for server in servers]
            (place,) = [i for i, server in enumerate(servers) if now[i] > counts[i]]
            places[n].append(place)
            cached[n].append(hit)
            if turn < TURNS - 1:
                before[n] = tokens
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": prose(first + turn, 40)}]
    return places, cached, before


def test_conversations_find_their_blocks_again(servers: list[Server], start_gateway: StartGateway) -> None:
    pods = [server.address for server in servers]
    aware = start_gateway(pods=pods)
    places, cached, before = converse(aware, servers, 1)
    assert all(len(set(visited)) == 1 for visited in places), places
    for n in range(CONVERSATIONS):
        assert cached[n][0] < cached[n][1] < cached[n][2]
        # All blocks of the turn before but for the last, which is not full.
        assert cached[n][-1] > before[n] - BLOCK
    assert aware.metric("octavo_gateway_routed_requests_total") == TURNS * CONVERSATIONS
    assert aware.metric("octavo_gateway_rejected_reports_total") == 0
    tokens = series(aware, "octavo_gateway_prefix_tokens_total")
    assert tokens["cached"] == sum(map(sum, cached))
    assert tokens["predicted"] == pytest.approx(tokens["cached"], rel=0.25)
    in_turn = start_gateway("--static-strategy", "RoundRobin", pods=pods)
    places, others, _ = converse(in_turn, servers, 50)
    assert all(len(set(visited)) == 2 for visited in places), places
    assert sum(map(sum, cached)) > 1.5 * sum(map(sum, others))


def test_a_second_gateway_finds_what_the_first_sent(servers: list[Server], start_gateway: StartGateway) -> None:
    """Both see the same text once; from then on the servers' own hashes tell either where it is."""
    pods = [server.address for server in servers]
    one, other = start_gateway(pods=pods), start_gateway(pods=pods)
    history = [{"role": "user", "content": prose(99, 150)}]
    _, tokens, _ = chat(one, history)
    # Nobody is busy: gateways that have not seen a text before agree on where it goes.
    assert chat(other, history)[2] > tokens - 2 * BLOCK
    eventually(lambda: series(one, "octavo_gateway_prefix_index_entries")["hashes"] > 0, 60)
    eventually(lambda: series(one, "octavo_gateway_prefix_index_entries")["assumed"] == 0, 60)
    for gateway in (one, other, one):
        history += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": prose(3, 40)}]
        _, now, cached = chat(gateway, history)
        assert cached > tokens - BLOCK
        tokens = now


def test_a_tool_is_called_through_the_gateway(servers: list[Server], start_gateway: StartGateway) -> None:
    gateway = start_gateway(pods=[server.address for server in servers])
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "weather", "description": prose(7, 60), "parameters": schema}}]
    body = {"model": "m", "tools": tools, "tool_choice": "required", "temperature": 0, "parallel_tool_calls": False}
    history: list[dict[str, Any]] = [{"role": "user", "content": "How warm is it in Paris?"}]
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**body, messages=history)
        [call] = whole.choices[0].message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"city"}
        with client.chat.completions.stream(**body, messages=history) as stream:
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.arguments == call.function.arguments
        history += [
            whole.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "25 degrees"},
        ]
        second = client.chat.completions.create(**body, messages=history)
    # The prompt begins with the tools, and the pod that has them answers.
    assert second.usage.prompt_tokens_details.cached_tokens > whole.usage.prompt_tokens - BLOCK
