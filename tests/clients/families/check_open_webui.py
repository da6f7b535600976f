"""Open WebUI's calls, written down: bodies and headers of its backend, whose connection is an address and a key.

Written after `routers/openai.py` and `retrieval/utils.py` of Open WebUI 0.6. The application itself brings a vector
database and torch; what counts here is what arrives at the server.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2 as httpx
from checks import CITIES, COUNT, LONG_PROMPT, QUESTION, WRONG_KEY, Place, assert_cancelled, run

# Of its user, for accounting; a server has to accept and may ignore them.
HEADERS = {
    "X-OpenWebUI-User-Name": "A%20Person",
    "X-OpenWebUI-User-Id": "2a6c7c5e-7b0f-4b3f-8d0f-0d1a3c1f9e11",
    "X-OpenWebUI-User-Email": "person%40example.com",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "9f1d",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "The temperature in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(CITIES)}},
            "required": ["city"],
        },
    },
}


def client(place: Place, key: str | None = None) -> httpx.Client:
    """The connection."""
    headers = {"Authorization": f"Bearer {key or place.key}", **HEADERS}
    return httpx.Client(base_url=place.base_url, headers=headers, timeout=60)


def body(place: Place, content: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """A turn of a chat."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    return {"model": place.model, "messages": messages, "stream": True, "temperature": 0, "max_tokens": 24} | fields


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def streamed(place: Place, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a turn."""
    with client(place) as one, one.stream("POST", "/chat/completions", json=body(place, **fields)) as response:
        assert response.status_code == 200, response.read()
        return events(response)


def chat(place: Place) -> None:
    """The list of models, and the titles, tags and follow-ups that it asks for after a turn."""
    with client(place) as one:
        assert place.model in [model["id"] for model in one.get("/models").json()["data"]]
        for limit in ("max_tokens", "max_completion_tokens"):
            asked = {name: value for name, value in body(place).items() if name != "max_tokens"}
            answer = one.post("/chat/completions", json=asked | {"stream": False, limit: 24})
            assert answer.json()["choices"][0]["message"]["content"], answer.text


def stream(place: Place) -> None:
    """A turn with the usage that it shows below an answer."""
    chunks = streamed(place, stream_options={"include_usage": True})
    texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
    assert "".join(texts)
    assert len(texts) > 2
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def asynchronous(place: Place) -> None:
    """Several models' answers to one question are several streams at once."""

    async def turn(one: httpx.AsyncClient) -> str:
        async with one.stream("POST", "/chat/completions", json=body(place)) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)

    async def at_once() -> None:
        headers = {"Authorization": f"Bearer {place.key}", **HEADERS}
        async with httpx.AsyncClient(base_url=place.base_url, headers=headers, timeout=60) as one:
            texts = await asyncio.gather(*(turn(one) for _ in range(4)))
        assert texts[0]
        assert texts == texts[:1] * 4

    asyncio.run(at_once())


def tools(place: Place) -> None:
    """Its native tool calls: streamed deltas by index, the result in the next turn."""
    chunks = streamed(place, tools=[TOOL], tool_choice="required", max_tokens=96)
    calls = [
        call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or []
    ]
    arguments = "".join(call["function"].get("arguments") or "" for call in calls if call["index"] == 0)
    assert json.loads(arguments)["city"] in CITIES
    identity = calls[0]["id"]
    call = {"index": 0, "id": identity, "type": "function", "function": {"name": "temperature", "arguments": arguments}}
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": "27"},
    ]  # fmt: skip
    assert streamed(place, messages=turns, tools=[TOOL])


def embeddings(place: Place) -> None:
    """The chunks of a document, as its retrieval embeds them."""
    with client(place) as one:
        answer = one.post("/embeddings", json={"input": ["a", "b c"], "model": place.model}).json()
    assert [len(item["embedding"]) for item in answer["data"]] == [len(answer["data"][0]["embedding"])] * 2


def errors(place: Place) -> None:
    """It shows `error.message` of the body: too long a prompt, an unknown model, a wrong key."""
    with client(place) as one, client(place, WRONG_KEY) as wrong:
        for asked, status, words in (
            (lambda: one.post("/chat/completions", json=body(place, LONG_PROMPT)), 400, "tokens"),
            (lambda: one.post("/chat/completions", json=body(place, model="no-such-model")), 404, "no-such-model"),
            (lambda: wrong.get("/models"), 401, "key"),
        ):
            answer = asked()
            assert answer.status_code == status, answer.text
            assert words in answer.json()["error"]["message"]


def cancel(place: Place) -> None:
    """The button that stops an answer closes the connection."""
    with client(place) as one:
        request = one.build_request("POST", "/chat/completions", json=body(place, COUNT, max_tokens=3000))
        response = one.send(request, stream=True)
        next(response.iter_lines())
        assert_cancelled(place, response.close)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=asynchronous,
        tools=tools,
        structured_output="it asks for JSON in words",
        embeddings=embeddings,
        errors=errors,
        retries="it shows the error, and a person tries again",
        cancel=cancel,
    )
