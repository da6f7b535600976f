"""The steps of the demo; the end-to-end test runs the same steps with assertions."""

from __future__ import annotations

from typing import Any

from demo.cluster import RESOURCE, Cluster, condition, eventually
from demo.console import Console
from demo.traffic import Load, Stream, chat

NAME = "smollm2"
QUESTION = "Name the capital of France."
# The load requests long outputs, so that the KV pool of the example (spec.engine.kv.memory) fills within seconds.
LOAD_CLIENTS = 12
LOAD_TOKENS = 300
LOAD_REQUESTS_EACH = 40
# Chats that run while the second replica drains: they prove that a drain drops no stream.
CALM_CLIENTS = 2
CALM_TOKENS = 150


def question(text: str, *, max_tokens: int, **fields: object) -> dict[str, object]:
    """A chat request for the demo's model."""
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}


class Watch:
    """Prints the changes of an LLMDeployment's status since the last call."""

    def __init__(self, console: Console, cluster: Cluster, name: str) -> None:
        self._console, self._cluster, self._name = console, cluster, name
        self._seen: dict[str, str] = {}

    def look(self) -> dict[str, Any]:
        """The current resource; prints its changes."""
        resource = self._cluster.get(RESOURCE, self._name) or {}
        status = resource.get("status", {})
        for item in status.get("conditions", []):
            text = f"{item['type']}={item['status']} ({item['reason']}): {item['message']}"
            self._tell(f"condition {item['type']}", text, key=f"{item['status']} {item['reason']}")
        replicas = f"replicas: desired {status.get('desiredReplicas', 0)}, ready {status.get('readyReplicas', 0)}"
        self._tell("replicas", replicas, key=replicas)
        history = status.get("autoscaling", {}).get("history", [])
        if history:
            last = history[-1]
            text = f"scaled {last['from']} → {last['to']}: {last['reason']} ({last.get('inputs', '')})"
            self._tell("history", text, key=f"{last['time']} {last['to']}")
        return resource

    def _tell(self, topic: str, text: str, *, key: str) -> None:
        if self._seen.get(topic) != key:
            self._seen[topic] = key
            self._console.fact(text)


def become_ready(console: Console, cluster: Cluster, manifest: str) -> Watch:
    """Applies the example and waits until its LLMDeployment is Ready; returns its watch."""
    console.title("kubectl apply -f examples/smollm2.yaml")
    cluster.apply(manifest)
    watch = Watch(console, cluster, NAME)
    eventually("LLMDeployment Ready", lambda: _is_true(watch.look(), "Ready"), timeout=180)
    return watch


def answer(console: Console, url: str) -> Stream:
    """Sends one chat request and prints the answer as it streams."""
    console.title("A chat answer, streamed")
    console.line(f'  curl {url}/v1/chat/completions -d \'{{"model": "{NAME}", "stream": true, …}}\'')
    console.text(f"  > {QUESTION}\n  ")
    stream = chat(url, question(QUESTION, max_tokens=32, temperature=0), on_text=console.text)
    console.line("")
    if stream.complete and stream.first_token_seconds is not None:
        first = stream.first_token_seconds
        console.fact(f"{stream.tokens} tokens, first after {first:.2f} s, all after {stream.seconds:.2f} s")
    return stream


def scale_up_and_down(console: Console, cluster: Cluster, url: str, watch: Watch) -> list[Stream]:
    """Fills the KV pool until a second replica is ready, ends the load, waits for one replica; returns all streams."""
    console.title("A load that fills the KV pool")
    bodies = [_story(number, LOAD_TOKENS) for number in range(LOAD_CLIENTS)]
    load = Load(url, bodies, requests_each=LOAD_REQUESTS_EACH, timeout=600)
    try:
        eventually("two ready replicas", lambda: _ready(watch.look()) >= 2, timeout=240)
    finally:
        load.stop()
    console.title("The load ends; a few chats continue while a replica drains")
    bodies = [_story(number, CALM_TOKENS) for number in range(CALM_CLIENTS)]
    calm = Load(url, bodies, requests_each=LOAD_REQUESTS_EACH, timeout=600)
    try:
        results = list(load.join(300))
        console.fact(f"load ended: {sum(s.complete for s in results)} of {len(results)} streams complete")
        eventually("one replica", lambda: _only(watch.look(), cluster, 1), timeout=300)
    finally:
        calm.stop()
    results += calm.join(300)
    dropped = [stream for stream in results if not stream.complete]
    console.fact(
        f"one replica; {len(results) - len(dropped)} of {len(results)} streams complete, {len(dropped)} dropped"
    )
    for stream in dropped[:3]:
        console.fact(f"dropped: HTTP {stream.status}, {stream.error or 'ended without [DONE]'}")
    return results


def _story(number: int, tokens: int) -> dict[str, object]:
    text = f"Tell me story number {number}, with a dragon, a lighthouse and a very long journey home."
    return question(text, max_tokens=tokens, min_tokens=tokens, temperature=0.8, seed=number)


def _is_true(resource: dict[str, Any], kind: str) -> bool:
    found = condition(resource, kind)
    current = resource.get("metadata", {}).get("generation")
    return bool(found and found["status"] == "True" and resource["status"].get("observedGeneration") == current)


def _ready(resource: dict[str, Any]) -> int:
    return int(resource.get("status", {}).get("readyReplicas", 0))


def _only(resource: dict[str, Any], cluster: Cluster, count: int) -> bool:
    pods = cluster.items("pods", f"octavo.dev/llmdeployment={NAME}")
    return _ready(resource) == count and len(pods) == count
