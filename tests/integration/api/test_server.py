"""Real server, real model, two processes: what a client sees."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from octavo_inference.model_loader import load_text
from octavo_inference.tokenizer.chat_template import ChatTemplate

QUESTION = "Name the capital of France."


def events(text: str) -> list[dict]:
    lines = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def streamed(server, **fields) -> tuple[str, list[dict]]:
    response = server.api.post("/v1/chat/completions", json=server.body(stream=True, **fields))
    assert response.status_code == 200, response.text
    chunks = events(response.text)
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]), chunks


@pytest.fixture(scope="module")
def text():
    return load_text("smollm2")


def test_the_answer_is_right_and_the_stream_is_the_same(server, text):
    whole = server.chat()
    answer, chunks = streamed(server, stream_options={"include_usage": True})
    template = ChatTemplate(text.chat_template, text.tokenizer)
    assert "Paris" in whole["choices"][0]["message"]["content"]
    assert answer == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["prompt_tokens"] == len(template.tokens([{"role": "user", "content": QUESTION}]))
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_a_repeated_prompt_comes_from_the_cache(server):
    prompt = "The quick brown fox jumps over the lazy dog. " * 12
    first, second = (server.chat(prompt, max_tokens=4) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert second["choices"][0]["message"] == first["choices"][0]["message"]
    other = server.chat(prompt, max_tokens=4, cache_salt="other-team")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_client_cannot_name_itself_a_tenant(server):
    prompt = "Pack my box with five dozen liquor jugs. " * 12
    for tenant in ("a", "b"):
        response = server.api.post(
            "/v1/chat/completions", json=server.body(prompt), headers={"X-Octavo-Tenant": tenant}
        )
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_stop_strings_across_token_borders(server):
    full = server.chat()["choices"][0]["message"]["content"]
    stop = full[full.index("Paris") - 3 : full.index("Paris") + 2]
    whole = server.chat(stop=[stop])["choices"][0]
    answer, chunks = streamed(server, stop=[stop])
    assert whole["message"]["content"] == answer == full[: full.index(stop)]
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_seed_fixes_a_sampled_answer(server):
    answers = {server.chat(temperature=1.0, seed=7)["choices"][0]["message"]["content"] for _ in range(3)}
    several = server.chat(temperature=1.0, seed=7, n=3)["choices"]
    assert len(answers) == 1
    assert len({choice["message"]["content"] for choice in several}) > 1


def test_completions_with_logprobs(server):
    body = {"model": "smollm2", "prompt": ["The capital of France is", "One, two,"], "max_tokens": 3}
    answer = server.api.post("/v1/completions", json=body | {"temperature": 0, "logprobs": 2, "n": 1}).json()
    assert answer["choices"][0]["text"].startswith(" Paris")
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [3, 3]
    best = answer["choices"][0]["logprobs"]
    assert best["token_logprobs"][0] == pytest.approx(max(best["top_logprobs"][0].values()))


def test_disconnect_frees_its_blocks(server):
    body = server.body("Count forever.", stream=True, max_tokens=900, ignore_eos=True, n=2)
    with server.api.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        while '"content":"' not in next(lines):
            pass
        assert server.load()["blocks_pinned"] > 0
    begin = time.monotonic()
    while server.load()["blocks_pinned"]:
        assert time.monotonic() - begin < 5
    report = server.load()
    assert (report["running"], report["waiting"]) == (0, 0)
    assert report["steps"]["count"] == server.load()["steps"]["count"]


def test_32_streams_at_once(server):
    def ask(i: int) -> tuple[str, list[dict]]:
        return streamed(server, content=f"Say the number {i}.", max_tokens=16)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(32)))
    for _, chunks in answers:
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        assert reasons in (["stop"], ["length"])
    assert server.load()["blocks_pinned"] == 0


def test_metrics_are_exact(server, counters):
    before = counters()
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda i: server.chat(f"{i}", max_tokens=10, ignore_eos=True), range(10)))
    after = counters()
    names = ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "generation_tokens_total")
    for prefix in ("octavo:", "vllm:"):
        assert [after[prefix + name] - before[prefix + name] for name in names] == [10, 90, 100]


def test_liveness_is_answered_beside_large_prompts(server):
    alive: list[int] = []
    stop = threading.Event()

    def probe() -> None:
        # As long as kubelet waits: the words of a large prompt must not keep the loop that long.
        with httpx.Client(base_url=server.api.base_url, timeout=5) as client:
            while not alive or not stop.is_set():
                alive.append(client.get("/livez").status_code)

    prober = threading.Thread(target=probe)
    prober.start()
    body = {"model": "smollm2", "prompt": "word " * 200_000}
    with ThreadPoolExecutor(4) as pool:
        refused = list(pool.map(lambda _: server.api.post("/v1/completions", json=body), range(8)))
    stop.set()
    prober.join()
    assert {(r.status_code, r.json()["error"]["code"]) for r in refused} == {(400, "context_length_exceeded")}
    assert set(alive) == {200}


def test_idle_the_engine_uses_no_cpu(server):
    def second() -> float:
        """CPU seconds of the engine in a second."""
        begin = sum(server.engine.cpu_times()[:2])
        time.sleep(1)
        return sum(server.engine.cpu_times()[:2]) - begin

    # What the tests before left may take a moment; an engine that polls never comes to rest.
    assert any(second() <= 0.03 for _ in range(20))


def test_nothing_listens_but_the_two_ports(server):
    processes = [psutil.Process(server.process.pid), server.engine]
    listening = [c.laddr.port for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert sorted(listening) == sorted([server.api.base_url.port, server.admin.base_url.port])
    assert not any(c.laddr for p in processes for c in p.net_connections("unix"))


def test_load_report(server):
    report = server.load()
    assert report["model"] == "smollm2"
    assert report["ready"]
    assert report["cold_start"] > 0
    assert report["blocks_total"] * report["block_size"] >= 1024
    assert server.load()["sequence"] > report["sequence"]


def test_start_up_is_told(server):
    assert "first token at" in server.log
    assert "try: curl" in server.log
