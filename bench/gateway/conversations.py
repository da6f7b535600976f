"""Conversations over three real servers: the share of prompt tokens that each routing finds in the pods' prefix caches.

Every conversation begins with one of a few system prompts and grows by whole turns, so that a prefix computed on one
pod saves nothing on another. Servers stay up, and their caches are emptied before each proxy; each proxy is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.request import Request, urlopen

from bench.gateway.client import Answers, Client, request
from bench.gateway.proxies import Pod, running
from bench.lib.processes import log_file
from bench.lib.server import Server

Record = dict[str, Any]
Say = Callable[[Record], None]
WORDS = (  # noqa: SIM905 (a line per word reads worse)
    "river stone window garden winter paper music bread silver number engine forest candle letter bridge market "
    "island mirror ladder planet cotton hammer basket copper finger ribbon shadow tunnel velvet whistle"
).split()
_TOKEN = re.compile(rb'"content": ?"[^"]')
_CONTENT = re.compile(r"^data: (\{.*\})\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Talk:
    """Shape of the conversations: `gap` seconds between their starts, `pause` between a response and the next turn."""

    pods: int = 3
    kv_memory: str = "128Mi"
    systems: int = 6
    system_words: int = 250
    conversations: int = 18
    turns: int = 4
    turn_words: int = 60
    answer: int = 8
    gap: float = 1.6
    pause: float = 1.0
    rounds: int = 3


@dataclass(slots=True)
class Script:
    """The turns of one client."""

    system: str
    turns: list[str] = field(default_factory=list)


def scripts(talk: Talk, seed: int) -> list[Script]:
    """All conversations of a round; another seed gives other texts."""
    chance = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    systems = [words(talk.system_words) for _ in range(talk.systems)]
    order = [systems[number % talk.systems] for number in range(talk.conversations)]
    chance.shuffle(order)
    return [Script(system, [words(talk.turn_words) for _ in range(talk.turns)]) for system in order]


@contextlib.contextmanager
def servers(count: int, kv_memory: str) -> Iterator[list[Pod]]:
    """Ready `octavo-server` processes with the weights of SmolLM2, one thread each."""
    flags = ["--model", "smollm2", "--threads", "1", "--kv-memory", kv_memory]
    started: list[Server] = []
    try:
        for number in range(count):
            with log_file(f"gateway-pod-{number}").open("wb") as out:
                started.append(Server.start(flags, "bench.gateway.pod", out))
        for server in started:
            server.ready()
        yield [Pod(server.port, server.admin) for server in started]
    finally:
        for server in started:
            server.stop()


def reports(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """The load report of every pod."""
    found = []
    for pod in pods:
        with urlopen(f"http://127.0.0.1:{pod.admin}/v1/octavo/load", timeout=10) as response:
            found.append(json.load(response))
    return found


def forget(pods: Sequence[Pod]) -> None:
    """Empty every pod's cache."""
    for pod in pods:
        with urlopen(Request(f"http://127.0.0.1:{pod.admin}/v1/octavo/cache/reset", method="POST"), timeout=10):
            pass


async def converse(client: Client, script: Script, talk: Talk, answers: Answers) -> None:
    """Run one conversation: each turn sends the whole history."""
    messages = [{"role": "system", "content": script.system}]
    for turn in script.turns:
        messages.append({"role": "user", "content": turn})
        body = {"model": "bench", "stream": True, "max_tokens": talk.answer, "temperature": 0, "ignore_eos": True}
        sent = request({**body, "messages": messages})
        text = await client.call(sent, answers, time.perf_counter(), stream=True, mark=_TOKEN)
        if not text:
            return
        messages.append({"role": "assistant", "content": said(text)})
        await asyncio.sleep(talk.pause)


def said(text: str) -> str:
    """The content of a streamed response."""
    events = [json.loads(found) for found in _CONTENT.findall(text)]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def everyone(port: int, talk: Talk, seed: int) -> Answers:
    """Run all conversations of a round, each from its start time."""
    client, answers = Client(port), Answers()
    chance = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        for script in scripts(talk, seed):
            tasks.create_task(converse(client, script, talk, answers))
            await asyncio.sleep(chance.expovariate(1 / talk.gap))
    client.close()
    return answers


async def conversations(ways: Sequence[str], talk: Talk, until: float, say: Say) -> list[Record]:
    """Rounds of all proxies in turn; no round starts that would end after `until`, a time of `monotonic`."""
    records: list[Record] = []
    cores = os.sched_getaffinity(0)
    with servers(talk.pods, talk.kv_memory) as pods:
        for pod in pods:  # the first request of a process is slower
            await everyone(pod.port, Talk(conversations=1, turns=1), 0)
        longest = 0.0
        for number in range(1, talk.rounds + 1):
            began = time.monotonic()
            if records and began + longest > until:
                break
            for name in ways:
                forget(pods)
                before = reports(pods)
                with running(name, pods, cores) as proxy:
                    answers = await everyone(proxy.port, talk, number)
                records.append({"experiment": "prefix", "round": number, "way": name} | answers.summary())
                records[-1] |= _difference(before, reports(pods))
                say(records[-1])
            longest = max(longest, time.monotonic() - began)
    return records


def _difference(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Record:
    def grown(name: str) -> list[int]:
        return [int(new[name] - old[name]) for old, new in zip(before, after, strict=True)]

    prompt, hit = sum(grown("prompt_tokens")), sum(grown("prefix_hit_tokens"))
    return {"prompt_tokens": prompt, "hit_rate": round(hit / max(1, prompt), 4), "requests": grown("requests")}
