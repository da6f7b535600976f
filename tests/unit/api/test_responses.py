"""POST /v1/responses: the response object, its stream, and what is refused."""

from __future__ import annotations

import json

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.server.openai_responses import create

ANSWER = "The capital of France is Paris. \N{CAT FACE} It lies on the Seine."
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def events(text: str) -> list[dict]:
    """The events of a stream. The line `event:` of each has the type of its data."""
    found = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def text_of(response: dict) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_whole_response(serve, template):
    async with serve() as server:
        response = (await server.respond(instructions="Be brief.", metadata={"a": "b"})).json()
    messages = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert server.engine.seen[0].tokens == template.tokens(messages)
    tokens = len(server.engine.tokenizer.encode(ANSWER).ids) + 1
    assert (response["object"], response["status"], text_of(response)) == ("response", "completed", ANSWER)
    assert response["usage"] == {
        "input_tokens": len(server.engine.seen[0].tokens),
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(server.engine.seen[0].tokens) + tokens,
    }
    assert (response["instructions"], response["metadata"]) == ("Be brief.", {"a": "b"})
    assert response["output"][0]["role"] == "assistant"


async def test_a_limit_makes_it_incomplete(serve):
    async with serve() as server:
        response = (await server.respond(max_output_tokens=3)).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


async def test_sampling_reaches_the_engine(serve):
    async with serve() as server:
        await server.respond(temperature=0.5, top_p=0.25, max_output_tokens=9, **LOGPROBS)
        await server.respond()
    first, second = (request.sampling for request in server.engine.seen)
    assert (first.temperature, first.top_p, first.max_tokens, first.logprobs) == (0.5, 0.25, 9, 2)
    assert (second.temperature, second.top_p, second.logprobs) == (1.0, 1.0, None)
    assert second.max_tokens == 512 - len(server.engine.seen[1].tokens)


async def test_fields_that_load_tools_send(serve):
    async with serve() as server:
        await server.respond(ignore_eos=True, stop=None)
        await server.respond()
    assert [request.sampling.ignore_eos for request in server.engine.seen] == [True, False]


@pytest.mark.parametrize("fields", [{}, LOGPROBS, {"max_output_tokens": 4}, {"background": True}])
async def test_the_stream_is_the_whole_response_in_pieces(serve, fields):
    async with serve() as server:
        whole = (await server.respond(**fields | {"background": False})).json()
        stream = events((await server.respond(stream=True, **fields)).text)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    deltas = [event for event in stream if event["type"] == "response.output_text.delta"]
    kinds = [event["type"] for event in stream if event not in deltas]
    end = "response.incomplete" if "max_output_tokens" in fields else "response.completed"
    assert kinds == [
        "response.created",
        *(["response.queued"] if "background" in fields else []),
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        end,
    ]
    last = stream[-1]["response"]
    [item], [part] = last["output"], last["output"][0]["content"]
    assert "".join(delta["delta"] for delta in deltas) == part["text"] == text_of(whole)
    assert [row for delta in deltas for row in delta["logprobs"]] == part["logprobs"]
    assert part["logprobs"] == whole["output"][0]["content"][0]["logprobs"]
    assert bool(part["logprobs"]) == ("include" in fields)
    assert (stream[-2]["item"], stream[-3]["part"]) == (item, part)
    assert {event["item_id"] for event in stream if "item_id" in event} == {item["id"]}
    own = {"id", "created_at", "completed_at", "output", "background"}
    assert {k: v for k, v in last.items() if k not in own} == {k: v for k, v in whole.items() if k not in own}


async def test_the_first_events_show_a_response_without_output(serve):
    async with serve() as server:
        stream = events((await server.respond(stream=True)).text)
    created, running = stream[0]["response"], stream[1]["response"]
    assert created == running
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)


async def test_obfuscation_hides_the_length_of_a_piece(serve):
    async with serve() as server:
        options = {"include_obfuscation": True}
        padded = (await server.respond(stream=True, stream_options=options)).text
        plain = (await server.respond(stream=True)).text
    lines = [line for line in padded.split("\n") if "output_text.delta" in line and line.startswith("data:")]
    lengths = {len(line.encode()) for line in lines}
    # Pieces that a busy machine joins are longer by a multiple.
    assert len({length % 32 for length in lengths}) == 1
    assert "obfuscation" not in plain


async def test_an_earlier_conversation_in_every_form(serve, template):
    given = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": None,
            "content": [{"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}],
        },
        {"role": "assistant", "content": "What now?"},
        {"role": "user", "content": "Bye"},
    ]
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "assistant", "content": "What now?"},
        {"role": "user", "content": "Bye"},
    ]
    async with serve() as server:
        response = await server.respond(input=given)
        assert response.status_code == 200, response.text
    assert server.engine.seen[0].tokens == template.tokens(expected)


NOTHING = {
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": "none", "summary": None},
    "service_tier": "auto",
    "truncation": "disabled",
    "include": ["reasoning.encrypted_content"],
    "stream_options": {"include_obfuscation": False},
    "background": False,
    "conversation": None,
    "context_management": [],
    "prompt_cache_key": "k",
    "prompt_cache_retention": "in_memory",
    "safety_identifier": "s",
    "user": "u",
    "moderation": None,
    "prompt": None,
}


@pytest.mark.parametrize("field", NOTHING)
async def test_values_that_ask_for_nothing_are_accepted(serve, field):
    async with serve() as server:
        response = await server.respond(**{field: NOTHING[field]})
    assert response.status_code == 200, response.text


REFUSED = [
    ("tools", [{"type": "web_search"}], "tools[0].type"),
    ("tools", [{"type": "function", "name": "f"}] * 2, "tools[1].name"),
    ("tool_choice", "required", "tool_choice"),
    ("text", {"format": {"type": "json_schema"}}, "text.format.name"),
    ("text", {"format": {"type": "xml"}}, "text.format.type"),
    ("text", {"format": {"type": "json_schema", "name": "a"}}, "text.format.schema"),
    ("text", {"format": {"type": "json_schema", "name": "a", "schema": {"if": {}}}}, "text.format.schema"),
    ("text", {"format": {"type": "json_object", "strict": True}}, "text.format.strict"),
    ("text", {"verbosity": "low"}, "text.verbosity"),
    ("reasoning", {"effort": "low"}, "reasoning.effort"),
    ("conversation", "conv_1", "conversation"),
    ("prompt", {"id": "p"}, "prompt"),
    ("moderation", {"model": "m"}, "moderation"),
    ("service_tier", "flex", "service_tier"),
    ("truncation", "middle", "truncation"),
    ("include", ["everything"], "include[0]"),
    ("top_logprobs", 2, "top_logprobs"),
    ("top_logprobs", 21, "top_logprobs"),
    ("max_output_tokens", 0, "max_output_tokens"),
    ("max_output_tokens", 100_000, "input"),
    ("temperature", 2.5, "temperature"),
    ("metadata", {"k" * 65: "v"}, None),
    ("surprise", 1, "surprise"),
    ("input", [], "input"),
    ("input", None, "input"),
    ("input", [{"role": "user"}], "input[0]"),
    ("input", [{"type": "item_reference"}], "input[0].id"),
    ("input", [{"type": "item_reference", "id": "a", "role": "user", "content": "x"}], "input[0]"),
    ("input", [{}], "input[0]"),
    ("input", [{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
    ("input", [{"type": "function_call_output", "call_id": "c", "output": "x"}], "input[0].call_id"),
    ("input", [{"role": "user", "content": "x", "call_id": "c"}], "input[0].call_id"),
    ("input", [{"role": "tool", "content": "x"}], "input[0].role"),
    (
        "input",
        [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}],
        "input[0].content[0].type",
    ),
    ("input", [{"type": "item_reference", "id": "msg_0"}], "input[0].id"),
    ("input", "word " * 600, "input"),
    ("previous_response_id", "resp_0", "previous_response_id"),
]


@pytest.mark.parametrize(("field", "value", "param"), REFUSED)
async def test_what_is_not_supported_is_refused_with_its_name(serve, field, value, param):
    async with serve() as server:
        response = await server.respond(**{field: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert not server.engine.seen


async def test_a_context_overflow_names_the_input(serve):
    async with serve() as server:
        error = (await server.respond(input="word " * 600)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "messages" not in error["message"]


async def test_truncation_leaves_out_the_beginning(serve, template):
    turns = [
        {"role": role, "content": f"{role} {number} " * 10} for number in range(20) for role in ("user", "assistant")
    ]
    turns.append({"role": "user", "content": "Last?"})
    async with serve() as server:
        refused = await server.respond(input=turns, instructions="Be brief.")
        response = await server.respond(
            input=turns, instructions="Be brief.", truncation="auto", max_output_tokens=50, store=True
        )
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["truncation"] == "auto"
    tokens = server.engine.seen[0].tokens
    system = {"role": "system", "content": "Be brief."}
    candidates = [template.tokens([system, *turns[start:]]) for start in range(0, len(turns), 2)]
    assert tokens == next(candidate for candidate in candidates if len(candidate) <= 512 - 50)


async def test_input_tokens_are_those_of_the_prompt(serve):
    async with serve() as server:
        used = (await server.respond(instructions="Be brief.")).json()["usage"]["input_tokens"]
        body = {"input": "What is the capital of France?", "instructions": "Be brief."}
        counted = await server.api.post("/v1/responses/input_tokens", json=body)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": used}
    assert len(server.engine.seen) == 1


async def test_a_failure_before_the_first_token_is_an_http_error(serve):
    async with serve(fail_at=1) as server:
        responses = [await server.respond(stream=stream) for stream in (True, False)]
    assert {response.json()["error"]["code"] for response in responses} == {"engine_unavailable"}


async def test_a_failure_after_it_is_the_last_event(serve):
    async with serve(fail_at=4, pace=0.02) as server:
        stream = events((await server.respond(stream=True)).text)
    last = stream[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": last["response"]["error"]["message"]}
    assert last["response"]["error"]["message"].startswith("The server lost the process")
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert text_of(last["response"]) == "".join(e.get("delta", "") for e in stream)


async def test_silence_is_filled_with_the_first_events_and_comments(serve, monkeypatch):
    monkeypatch.setattr(create, "KEEP_ALIVE_SECONDS", 0.02)
    async with serve(listen=True, hold=True) as server:
        body = {"model": "m", "input": "x", "stream": True}
        async with server.api.stream("POST", "/v1/responses", json=body) as response:
            lines = response.aiter_lines()
            first = [await anext(lines) for _ in range(10)]
            server.release()
            rest = [line async for line in lines]
    assert first[0] == "event: response.created"
    assert first[6:] == [": keep-alive", ""] * 2
    stream = events("\n".join([*first, *rest]))
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert stream[-1]["type"] == "response.completed"


async def test_a_client_that_leaves_ends_the_generation_and_stores_nothing(serve):
    async with serve(listen=True, pace=0.02) as server:
        async with server.api.stream(
            "POST", "/v1/responses", json={"model": "m", "input": "x", "stream": True}
        ) as response:
            async for line in response.aiter_lines():
                if "delta" in line:
                    break
        await eventually_async(lambda: server.service.router.sequences == 0)
    assert len(server.service.responses) == 0
