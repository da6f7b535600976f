"""POST /v1/messages: Anthropic's bodies, events and errors."""

from __future__ import annotations

import json
import random

import httpx
import pytest
from tests.support.tiers import scaled

from octavo_inference.core.request import DEADLINE
from octavo_inference.server.anthropic.responses import ending
from octavo_inference.server.auth import Keys
from octavo_inference.tokenizer.detokenizer import Delta

from .conftest import ANSWER

USER = [{"role": "user", "content": "What is the capital of France?"}]


def body(**fields):
    return {"model": "m", "max_tokens": 200, "messages": USER} | fields


async def ask(server, headers=None, **fields) -> httpx.Response:
    return await server.api.post("/v1/messages", json=body(**fields), headers=headers)


def events(response: httpx.Response) -> list[dict]:
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        document = json.loads(data.removeprefix("data: "))
        assert name == f"event: {document['type']}"
        found.append(document)
    return found


def refused(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"type", "error", "request_id"}
    assert set(document["error"]) == {"type", "message"}
    assert document["type"] == "error"
    assert document["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return document["error"]["message"]


def prompt(server, tokenizer) -> str:
    return tokenizer.decode(server.engine.seen[-1].tokens, skip_special_tokens=False)


async def test_a_whole_answer(serve):
    async with serve() as server:
        response = await ask(server)
    answer = response.json()
    assert answer.pop("id").startswith("msg_")
    usage = answer.pop("usage")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": ANSWER, "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
    }
    assert usage["cache_read_input_tokens"] == 7
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + 7 == len(server.engine.seen[0].tokens)


async def test_a_stream_has_anthropics_events_in_order(serve):
    async with serve() as server:
        found = events(await ask(server, stream=True))
        whole = (await ask(server)).json()
    kinds = [event["type"] for event in found]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        *("message_start", "content_block_start", "ping"),
        *["content_block_delta"] * deltas,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start, end = found[0]["message"], found[-2]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert "".join(event["delta"]["text"] for event in found[3:-3]) == whole["content"][0]["text"]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None, "stop_details": None}
    assert end["usage"] == whole["usage"]


async def test_a_stream_is_the_whole_answer_for_any_text_and_stop_sequence(serve):
    pieces = ["a", "b", "ab", " ", "\n", '"', "\\", "\x01", "\N{CAT FACE}", "\u00e9", "</s>"]
    choices = random.Random(7)
    async with serve() as server:
        for _ in range(scaled(40)):
            server.engine.answer = "".join(choices.choices(pieces, k=choices.randrange(12)))
            stop = ["".join(choices.choices(pieces, k=choices.randrange(1, 4))) for _ in range(choices.randrange(3))]
            fields = {"stop_sequences": stop, "max_tokens": choices.choice([1, 3, 8, 100])}
            whole = (await ask(server, **fields)).json()
            found = events(await ask(server, stream=True, **fields))
            text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
            assert text == "".join(block["text"] for block in whole["content"]), fields
            end = found[-2]
            assert end["usage"] == whole["usage"]
            assert end["delta"] == {key: whole[key] for key in ("stop_reason", "stop_sequence", "stop_details")}


async def test_an_answer_without_text_has_no_block(serve):
    async with serve(answer="") as server:
        whole = (await ask(server)).json()
        found = events(await ask(server, stream=True))
    assert whole["content"] == []
    assert [event["type"] for event in found] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_named_and_not_shown(serve, stream):
    async with serve() as server:
        response = await ask(server, stop_sequences=["lies", " Paris"], stream=stream)
    if stream:
        found = events(response)
        text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
        end = {key: found[-2]["delta"][key] for key in ("stop_reason", "stop_sequence")}
    else:
        answer = response.json()
        text, end = answer["content"][0]["text"], {key: answer[key] for key in ("stop_reason", "stop_sequence")}
    assert text == "The capital of France is"
    assert end == {"stop_reason": "stop_sequence", "stop_sequence": " Paris"}


async def test_max_tokens_ends_an_answer(serve):
    async with serve() as server:
        answer = (await ask(server, max_tokens=3)).json()
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 3)


async def test_max_tokens_may_exceed_the_context_whose_end_is_named(serve):
    async with serve(answer=ANSWER * 100) as server:
        answer = (await ask(server, max_tokens=32_000)).json()
    usage = answer["usage"]
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 512


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "shortened", "end"),
    [
        ("stop", None, False, ("end_turn", None)),
        ("stop", 2, True, ("end_turn", None)),
        ("stop", "END", True, ("stop_sequence", "END")),
        ("length", None, False, ("max_tokens", None)),
        ("length", None, True, ("model_context_window_exceeded", None)),
        ("length", DEADLINE, True, ("max_tokens", None)),
    ],
)
def test_the_end_of_an_answer_has_anthropics_name(finish_reason, stop_reason, shortened, end):
    found = ending(Delta("", [], None, finish_reason, stop_reason), shortened=shortened)
    assert (found.stop_reason, found.stop_sequence) == end


async def test_sampling_fields_reach_the_engine(serve):
    async with serve() as server:
        await ask(server, temperature=0.25, top_p=0.5, top_k=40, stop_sequences=["x"], priority=2)
        await ask(server)
    given, plain = server.engine.seen
    sampling = given.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop) == (0.25, 0.5, 40, ("x",))
    assert given.priority == 2
    assert (plain.sampling.temperature, plain.sampling.top_p, plain.sampling.top_k) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    "system", ["Be brief.\nBe kind.", [{"type": "text", "text": t} for t in ("Be brief.", "Be kind.")]]
)
async def test_the_system_prompt_is_the_first_message(serve, tokenizer, system):
    async with serve() as server:
        await ask(server, system=system)
        text = prompt(server, tokenizer)
    assert text.startswith("<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert text.endswith("<|im_start|>assistant\n")


async def test_consecutive_messages_of_a_role_are_one_turn(serve, tokenizer):
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    async with serve() as server:
        await ask(server, messages=[{"role": role, "content": text} for role, text in turns])
        text = prompt(server, tokenizer)
    assert text.count("<|im_start|>user\n") == 2
    assert (
        "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\ncd<|im_end|>\n<|im_start|>user\ne<|im_end|>" in text
    )


@pytest.mark.parametrize("content", ["Sure: <b", [{"type": "text", "text": "Sure: "}, {"type": "text", "text": "<b"}]])
async def test_a_final_assistant_message_is_continued(serve, tokenizer, content):
    async with serve() as server:
        await ask(server, messages=[*USER, {"role": "assistant", "content": content}])
        text = prompt(server, tokenizer)
    assert text.endswith("<|im_start|>assistant\nSure: <b")


async def test_an_empty_final_assistant_message_asks_for_an_answer(serve, tokenizer):
    async with serve() as server:
        await ask(server, messages=[*USER, {"role": "assistant", "content": []}])
        await ask(server)
    first, second = server.engine.seen
    assert first.tokens == second.tokens


async def test_a_final_assistant_message_with_trailing_space_is_refused(serve):
    async with serve() as server:
        response = await ask(server, messages=[*USER, {"role": "assistant", "content": "The answer is "}])
    assert "final assistant content cannot end with trailing whitespace" in refused(response)


async def test_control_tokens_in_a_final_assistant_message_stay_text(serve):
    async with serve() as server:
        await ask(server, messages=[*USER, {"role": "assistant", "content": "<|im_end|>"}])
        await ask(server, messages=[*USER, {"role": "assistant", "content": "x"}])
    first, second = server.engine.seen
    assert [t for t in first.tokens if t < 17] == [t for t in second.tokens if t < 17]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "none"}},
        {"thinking": {"type": "disabled"}},
        {"metadata": {"user_id": "u"}},
        {"service_tier": "auto"},
        {"service_tier": "standard_only"},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"output_config": {"effort": None, "format": None}},
        {"mcp_servers": [], "speed": "standard", "container": None, "thread": None},
        {"system": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "citations": None}]},
        {"messages": [{"role": "user", "content": [{"text": "Hi", "type": "text", "cache_control": None}]}]},
    ],
    ids=str,
)
async def test_fields_that_ask_for_nothing_are_accepted(serve, fields):
    async with serve() as server:
        assert (await ask(server, **fields)).status_code == 200


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: 'bash_20250124' is not supported"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: two tools have the name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools."),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: this field is required for the type tool."),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking.type: not supported; supported: 'disabled' (this model does not think).",
        ),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers: not supported; supported: an empty list."),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "'image' is not supported; supported: 'text', 'tool_use', 'tool_result' and 'thinking'.",
        ),
        (
            {"messages": [{"role": "user", "content": [dict(reversed(IMAGE.items()))]}]},
            "messages[0].content[0].type: 'image' is not supported; supported: 'text', 'tool_use', 'tool_result' and",
        ),
        ({"system": [{"type": "document"}]}, "'document' is not supported; supported: 'text'."),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "content[0].type: this field is required."),
        ({"system": [{"type": "text"}]}, "system[0].text: this field is required."),
        ({"cache_control": {}}, "cache_control.type: this field is required."),
        ({"thinking": {}}, "thinking.type: this field is required."),
        ({"tool_choice": {}}, "tool_choice.type: this field is required."),
        ({"container": "c"}, "container: "),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema: this field is required.",
        ),
        ({"temperature": 1.5}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"top_k": -1}, "top_k: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role: "),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"service_tier": "priority"}, "service_tier: "),
        ({"n": 2}, "n: this server knows no such field"),
        ({"seed": 1}, "seed: this server knows no such field"),
        (
            {"messages": [{"role": "user", "content": [{"type": "redacted_thinking", "data": ""}]}]},
            "messages[0].content[0].type: only messages of the role assistant have such a block.",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]}]},
            "messages: their content is empty; give at least one text.",
        ),
    ],
    ids=str,
)
async def test_refusals_name_the_field_and_what_is_supported(serve, fields, words):
    async with serve() as server:
        response = await ask(server, **fields)
    assert words in refused(response)
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_thread_is_refused_so_that_a_client_goes_on_without_it(serve):
    """Clients look for these details, then send the whole conversation."""
    async with serve() as server:
        response = await ask(server, thread={"type": "create"})
        other = await ask(server, container="c")
    assert refused(other)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "type": "invalid_request_error",
        "message": "thread: this server keeps no threads of messages; send the whole conversation without it.",
        "details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    }


async def test_max_tokens_is_required(serve):
    async with serve() as server:
        response = await server.api.post("/v1/messages", json={"model": "m", "messages": USER})
    assert refused(response) == "max_tokens: this field is required."


@pytest.mark.parametrize("length", [600, 400_000])
async def test_a_prompt_that_is_too_long_says_so_in_anthropics_words(serve, length):
    async with serve() as server:
        response = await ask(server, messages=[{"role": "user", "content": "a " * length}])
    assert refused(response).startswith("prompt is too long: This model's maximum context length is 512 tokens.")


async def test_tokens_are_counted_as_a_message_counts_them(serve):
    conversation = {
        "model": "m",
        "system": "Be brief.",
        "messages": [*USER, {"role": "assistant", "content": "It is"}],
    }
    async with serve() as server:
        counted = await server.api.post("/v1/messages/count_tokens", json=conversation | {"tools": []})
        usage = (await ask(server, **conversation)).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


async def test_a_count_takes_no_sampling_fields(serve):
    async with serve() as server:
        response = await server.api.post("/v1/messages/count_tokens", json=body())
    assert refused(response).startswith("max_tokens: ")


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("secret\n")
    return Keys(str(file), "--api-key-file")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages", 401, "authentication_error"),
        ("POST", "/v1/messages/count_tokens", 401, "authentication_error"),
    ],
)
async def test_a_missing_key_is_an_error_in_anthropics_format(serve, keys, method, path, status, kind):
    async with serve(keys=keys) as server:
        response = await server.api.request(method, path, json=body())
        allowed = await ask(server, headers={"x-api-key": "secret"})
    refused(response, status)
    assert response.json()["error"]["type"] == kind
    assert allowed.status_code == 200


@pytest.mark.parametrize(
    ("request_", "status", "kind"),
    [
        ({"method": "GET", "url": "/v1/messages"}, 405, "invalid_request_error"),
        ({"method": "POST", "url": "/v1/messages/batches", "json": {}}, 404, "not_found_error"),
        ({"method": "POST", "url": "/v1/messages", "content": b"x" * (9 * 2**20)}, 413, "request_too_large"),
        ({"method": "POST", "url": "/v1/messages", "content": b"{"}, 400, "invalid_request_error"),
        ({"method": "POST", "url": "/v1/messages", "json": body(model="other")}, 404, "not_found_error"),
        ({"method": "GET", "url": "/v1/models/other", "headers": {"anthropic-version": "x"}}, 404, "not_found_error"),
        ({"method": "GET", "url": "/v1/files", "headers": {"anthropic-version": "x"}}, 404, "not_found_error"),
    ],
    ids=lambda given: str(given)[:60],
)
async def test_errors_of_the_layers_around_have_anthropics_format(serve, request_, status, kind):
    async with serve() as server:
        headers = {"content-type": "application/json"} | request_.get("headers", {})
        response = await server.api.request(**request_ | {"headers": headers})
    refused(response, status)
    assert response.json()["error"]["type"] == kind


async def test_a_full_queue_is_an_overload_to_retry(serve):
    async with serve(max_queued=0) as server:
        server.service.draining = True
        response = await ask(server)
    refused(response, 503)
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.headers["retry-after"] == "2"


async def test_a_stream_that_fails_ends_with_an_error_event(serve):
    async with serve(fail_at=4) as server:
        found = events(await ask(server, stream=True))
    assert [found[-1]["type"], found[-1]["error"]["type"]] == ["error", "overloaded_error"]
    assert "message_stop" not in {event["type"] for event in found}


async def test_a_silent_stream_sends_pings_after_its_start(serve, monkeypatch):
    monkeypatch.setattr("octavo_inference.server.anthropic.messages.KEEP_ALIVE_SECONDS", 0.05)
    async with serve(listen=True, pace=0.5) as server:
        response = await ask(server, stream=True, max_tokens=3)
    blocks = response.text.split("\n\n")
    start = next(number for number, block in enumerate(blocks) if block.startswith("event: message_start"))
    assert set(blocks[:start]) == {": keep-alive"}
    assert sum(block.startswith("event: ping") for block in blocks) > 1


async def test_the_openai_format_stays_for_other_clients(serve):
    async with serve() as server:
        response = await server.api.get("/v1/models/other")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in response.headers


async def test_models_have_anthropics_format_for_its_clients(serve):
    headers = {"anthropic-version": "2023-06-01"}
    async with serve() as server:
        found = (await server.api.get("/v1/models", headers=headers)).json()
        one = (await server.api.get("/v1/models/alias", headers=headers)).json()
        plain = (await server.api.get("/v1/models")).json()
    assert {key: found[key] for key in ("has_more", "first_id", "last_id")} == {
        "has_more": False,
        "first_id": "m",
        "last_id": "alias",
    }
    assert found["data"][1] == one
    assert one == {
        "type": "model",
        "id": "alias",
        "display_name": "alias",
        "created_at": "1970-01-01T00:00:01Z",
        "max_input_tokens": 512,
        "max_tokens": 512,
        "lifecycle": "active",
    }
    assert plain["object"] == "list"


@pytest.mark.parametrize(
    ("query", "names", "more"),
    [
        ("limit=1", ["m"], True),
        ("limit=1&after_id=m", ["alias"], False),
        ("before_id=alias", ["m"], False),
        ("after_id=alias", [], False),
    ],
)
async def test_models_come_in_pages(serve, query, names, more):
    async with serve() as server:
        found = (await server.api.get(f"/v1/models?{query}", headers={"anthropic-version": "x"})).json()
    assert ([model["id"] for model in found["data"]], found["has_more"]) == (names, more)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after_id=z"])
async def test_a_page_that_cannot_be_is_refused(serve, query):
    async with serve() as server:
        response = await server.api.get(f"/v1/models?{query}", headers={"anthropic-version": "x"})
    assert refused(response).startswith(query.partition("=")[0])
