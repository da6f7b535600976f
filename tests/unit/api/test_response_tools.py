"""Function tools and thinking in the Responses API: items, their events, and conversations that go on."""

from __future__ import annotations

import asyncio
import json

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.unit.api.test_tools import CALL, TEMPLATE, TOOL, prompt, use

from octavo_protocol.response_id import response_of_item

FUNCTION = {"type": "function", **TOOL["function"]}
THINKING = f"<think>\nIt asks.\n</think>\n\nLet me see.\n{CALL}"
EVENT = TypeAdapter(ResponseStreamEvent)


def events(text):
    found = []
    for block in text.split("\n\n")[:-1]:
        name, _, data = block.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    return found


def rebuilt(stream):
    """The items of a stream, put together from its deltas."""
    items = {}
    for event in stream:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index == len(items)
            items[index] = [event["item"], ""]
        elif event["type"].endswith(".delta"):
            items[index][1] += event["delta"]
    return [(item["type"], text) for item, text in items.values()]


async def test_thinking_text_and_calls_are_items(serve):
    async with serve() as server:
        use(server, THINKING)
        response = (await server.respond(tools=[FUNCTION], input="Hi")).json()
        stream = events((await server.respond(tools=[FUNCTION], input="Hi", stream=True)).text)
    thought, message, call = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "It asks."}]
    assert message["content"][0]["text"].strip() == "Let me see."
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Paris"})
    assert call["call_id"].startswith("call_")
    assert response["tools"][0]["name"] == "weather"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert [kind for kind, _ in rebuilt(stream)] == ["reasoning", "message", "function_call"]
    final = stream[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert [text for _, text in rebuilt(stream)] == [
        final["output"][0]["content"][0]["text"],
        final["output"][1]["content"][0]["text"],
        final["output"][2]["arguments"],
    ]


async def test_a_background_response_is_followed_from_any_event(serve):
    async with serve() as server:
        use(server, THINKING)
        text = (await server.respond(tools=[FUNCTION], input="Hi", stream=True, background=True)).text
        stream = events(text)
        name = stream[0]["response"]["id"]
        for after in range(len(stream) - 1):
            path = f"/v1/responses/{name}?stream=true&starting_after={after}"
            assert events((await server.api.get(path)).text) == stream[after + 1 :]
        hidden = events((await server.api.get(f"/v1/responses/{name}?stream=true&include_obfuscation=true")).text)
        stored = (await server.api.get(f"/v1/responses/{name}")).json()
    assert all("obfuscation" in event for event in hidden if event["type"].endswith(".delta"))
    assert stored["output"] == stream[-1]["response"]["output"]
    assert stored["status"] == "completed"


async def test_a_conversation_goes_on_behind_a_call(serve):
    async with serve() as server:
        use(server, THINKING, TEMPLATE + "{# message.reasoning_content #}")
        first = (await server.respond(tools=[FUNCTION], input="Hi")).json()
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        server.engine.answer = "It rains."
        stored = await server.respond(input=[result], previous_response_id=first["id"], tools=[FUNCTION])
        one = prompt(server)
        sent = await server.respond(
            input=[{"role": "user", "content": "Hi"}, *first["output"], result], tools=[FUNCTION]
        )
        assert (stored.status_code, sent.status_code) == (200, 200), sent.text
        assert prompt(server) == one
        items = (await server.api.get(f"/v1/responses/{stored.json()['id']}/input_items?order=asc")).json()["data"]
    lines = one.splitlines()
    said = json.loads(lines[2])
    assert said["reasoning_content"] == "It asks."
    assert said["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert json.loads(lines[3]) == {"role": "tool", "tool_call_id": call["call_id"], "content": "rain"}
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]


async def test_references_to_thinking_and_calls_stand_for_them(serve):
    async with serve() as server:
        use(server, THINKING, TEMPLATE + "{# message.reasoning_content #}")
        first = (await server.respond(tools=[FUNCTION], input="Hi")).json()
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "rain"}
        server.engine.answer = "It rains."
        await server.respond(input=[result], previous_response_id=first["id"], tools=[FUNCTION])
        one = prompt(server)
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        asked = {"role": "user", "content": "Hi"}
        response = await server.respond(input=[asked, *references, result], tools=[FUNCTION])
        assert response.status_code == 200, response.text
        assert prompt(server) == one
    assert {response_of_item(item["id"]) for item in first["output"]} == {first["id"]}
    assert [item["id"].split("_")[0] for item in first["output"]] == ["rs", "msg", "fc"]


async def test_a_cancelled_response_has_the_items_so_far(serve):
    async with serve() as server:
        use(server, THINKING + " more" * 100)
        server.engine.pace = 0.01
        started = (await server.respond(tools=[FUNCTION], input="Hi", background=True, store=True)).json()
        await asyncio.sleep(0.3)
        ended = (await server.api.post(f"/v1/responses/{started['id']}/cancel")).json()
    assert ended["status"] == "cancelled"
    assert ended["output"] == [] or ended["output"][-1]["status"] == "incomplete"


async def test_claude_reads_thinking_text_and_calls(serve):
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    thinking = {"type": "adaptive"}
    async with serve() as server:
        use(server, THINKING, TEMPLATE + "{{ '<think></think>' if enable_thinking is false }}")
        shown = (await server.api.post("/v1/messages", json=body | {"thinking": thinking})).json()
        hidden = (await server.api.post("/v1/messages", json=body)).json()
        assert prompt(server).endswith("<think></think>")
        stream = (await server.api.post("/v1/messages", json=body | {"thinking": thinking, "stream": True})).text
    kinds = [block["type"] for block in shown["content"]]
    assert (kinds, shown["stop_reason"]) == (["thinking", "text", "tool_use"], "tool_use")
    assert shown["content"][0]["thinking"] == "It asks."
    assert shown["content"][2]["input"] == {"city": "Paris"}
    assert [block["type"] for block in hidden["content"]][-1] == "tool_use"
    assert "thinking" not in [block["type"] for block in hidden["content"]]
    found = [json.loads(block.partition("data: ")[2]) for block in stream.split("\n\n")[:-1]]
    starts = [event for event in found if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == list(enumerate(kinds))
    partial = "".join(
        event["delta"]["partial_json"]
        for event in found
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta"
    )
    assert json.loads(partial) == {"city": "Paris"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
