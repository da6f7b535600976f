"""What is not answered gets an error object with four keys, the field at fault and a useful status; never a 500."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.support.waiting import eventually_async

from octavo_inference.server.errors import ApiError
from octavo_inference.server.json_body import decode
from octavo_inference.server.openai.accepted import AcceptedFields
from octavo_inference.server.openai.requests import ChatRequest, CompletionRequest
from octavo_inference.server.prompts import SchedulingFields

BIG = 2**63


def refusal(response) -> dict:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


CHAT = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", True),
    ("temperature", "1"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("min_p", -1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("n", 2.0),
    ("max_tokens", 0),
    ("max_completion_tokens", "5"),
    ("seed", BIG),
    ("seed", 1.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", 11),
    ("stop", ["a"] * 65),
    ("stop", "x" * 257),
    ("stop", ""),
    ("stop_token_ids", [1] * 129),
    ("stop_token_ids", [49152]),
    ("stop_token_ids", [-1]),
    ("logprobs", 1),
    ("top_logprobs", 21),
    ("top_logprobs", 3),
    ("min_tokens", -1),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"nonsense": True}),
    ("user", "x" * 513),
    ("metadata", {str(i): "x" for i in range(17)}),
    ("cache_salt", "no spaces"),
    ("messages", []),
    ("messages", "hi"),
    ("messages", [{"role": "robot", "content": "x"}]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
    ("messages", [{"role": "user", "content": "x"}] * 4097),
    ("messages", [{"role": "user", "content": None}]),
    ("messages", [{"role": "tool", "content": "x", "tool_call_id": "1"}]),
    ("messages", [{"role": "assistant", "tool_calls": [{"id": "1"}]}]),
    ("tools", [{"type": "web_search"}]),
    ("tools", [{"type": "function", "function": {"name": "f"}}] * 129),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("functions", [{"name": "f g"}]),
    ("function_call", {"name": "f"}),
    ("include_reasoning", "yes"),
    ("thinking_token_budget", -1),
    ("thinking_token_budget", 5),
    ("parallel_tool_calls", "yes"),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "a"}),
    ("reasoning_effort", "high"),
    ("reasoning_effort", "much"),
    ("verbosity", "low"),
    ("chat_template", "{{ x }}"),
    ("chat_template_kwargs", {"enable_thinking": True}),
    ("chat_template_kwargs", {"messages": []}),
    ("documents", [{"title": "a"}]),
    ("continue_final_message", "yes"),
    ("echo", True),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("service_tier", "flex"),
    ("prompt_cache_retention", "24h"),
    ("prompt_cache_key", "x" * 513),
    ("nonsense", 1),
    ("model", 5),
    ("store", True),
]

BOTH = [
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}),
    ("response_format", {"type": "structural_tag", "format": {"type": "any"}}),
    ("structured_outputs", {}),
    ("structured_outputs", {"choice": []}),
    ("structured_outputs", {"choice": ["a"] * 10_001}),
    ("structured_outputs", {"regex": "a" * 65_537}),
    ("structured_outputs", {"json_object": True, "whitespace_pattern": " " * 257}),
    ("structured_outputs", {"regex": "a", "choice": ["a"]}),
    ("logit_bias", {"1": 100.5}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"49152": 1}),
    ("logit_bias", {str(i): 1 for i in range(1025)}),
    ("logit_bias", [1]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [49152]),
    ("allowed_token_ids", [1] * 1025),
    ("bad_words", "x"),
    ("bad_words", [""]),
    ("bad_words", ["x"] * 129),
    ("bad_words", ["x" * 257]),
    ("bad_words", [f"word {i}" for i in range(70)]),
    ("logprob_token_ids", [49152]),
    ("logprob_token_ids", [1]),
    ("include_stop_str_in_output", 1),
    ("skip_special_tokens", "no"),
    ("spaces_between_special_tokens", False),
    ("return_token_ids", 1),
    ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", -2),
    ("stream_options", {"include_usage": True}),
]

COMPLETIONS = [
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", ["a"] * 129),
    ("prompt", ["a", 1]),
    ("prompt", ["a", [1]]),
    ("prompt", [49152]),
    ("prompt", ""),
    ("prompt", None),
    ("suffix", "x"),
    ("logprobs", 21),
    ("messages", []),
    ("max_tokens", 0),
    ("max_tokens", -1),
]


async def test_every_field_has_bounds(serve):
    async with serve() as server:
        for ask, cases in ((server.chat, CHAT + BOTH), (server.complete, COMPLETIONS + BOTH)):
            for field, value in cases:
                response = await ask(**{field: value})
                assert response.status_code == 400, field
                assert refusal(response)["param"].startswith(field)
    assert server.engine.seen == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tools", [{"type": "mcp"}], "tools[0].type: 'mcp' is not supported; supported: 'function'."),
        ("audio", {}, "audio: not supported; supported: null (leave it out)."),
        ("tool_choice", "any", "tool_choice: 'any' is not supported; supported: 'auto', 'none', 'required'."),
        ("store", True, "store: true is not supported; supported: false."),
        ("modalities", ["text", "audio"], "modalities[1]: 'audio' is not supported; supported: 'text'."),
        (
            "response_format",
            {"type": "xml"},
            (
                "response_format.type: 'xml' is not supported; "
                "supported: 'json_object', 'json_schema', 'structural_tag', 'text'."
            ),
        ),
        (
            "messages",
            [{"role": "robot", "content": "x"}],
            (
                "messages[0].role: 'robot' is not supported; "
                "supported: 'assistant', 'developer', 'function', 'system', 'tool', 'user'."
            ),
        ),
        ("cache_policy", "big", "cache_policy: 'big' is not supported; supported: 'api', 'batch', 'chat'."),
        (
            "reasoning_effort",
            "high",
            "reasoning_effort: 'high' is not supported; supported: 'none' (this model's chat template takes no other).",
        ),
        (
            "chat_template_kwargs",
            {"style": 1},
            "chat_template_kwargs.style: not supported; supported: none (this model's chat template has no variables).",
        ),
    ],
)
async def test_a_refusal_says_what_is_supported(serve, field, value, message):
    async with serve() as server:
        response = await server.chat(**{field: value})
    assert response.status_code == 400
    assert refusal(response)["message"] == message
    assert refusal(response)["code"] == "unsupported_value"


ASKS_FOR_NOTHING = [
    ("tools", []),
    ("tool_choice", "none"),
    ("parallel_tool_calls", True),
    ("parallel_tool_calls", False),
    ("functions", []),
    ("function_call", "none"),
    ("modalities", ["text"]),
    ("reasoning_effort", "none"),
    ("verbosity", "medium"),
    ("response_format", {"type": "text"}),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("documents", []),
]


@pytest.mark.parametrize(("field", "value"), ASKS_FOR_NOTHING)
async def test_a_value_that_asks_for_nothing_changes_nothing(serve, field, value):
    async with serve() as server:
        without, given = await server.chat(), await server.chat(**{field: value})
    first, second = server.engine.seen
    assert without.json()["choices"] == given.json()["choices"]
    assert first.tokens == second.tokens


ACCEPTED = {
    "user": "someone",
    "metadata": {"a": "b"},
    "safety_identifier": "someone",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "in_memory",
    "store": False,
    "service_tier": "auto",
}


async def test_fields_without_effect_are_the_same_on_all_endpoints(serve):
    async with serve() as server:
        responses = [await server.chat(**ACCEPTED), await server.complete(**ACCEPTED)]
    assert [response.status_code for response in responses] == [200, 200]
    assert set(ACCEPTED) == set(AcceptedFields.__struct_fields__) - set(SchedulingFields.__struct_fields__)


async def test_a_history_of_another_server_is_accepted(serve, template):
    answer = {"role": "assistant", "content": None, "tool_calls": [], "annotations": [], "refusal": None, "audio": None}
    async with serve() as server:
        response = await server.chat(messages=[{"role": "user", "content": "a"}, answer])
    assert response.status_code == 200
    expected = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]
    assert server.engine.seen[0].tokens == template.tokens(expected)


BODIES = [b"", b"{", b"[]", b"42", b"null", b'"x"', b"true", b"\xff\xfe", b"[" * 100_000]
NUMBERS = [b'{"model":"m","prompt":"x","temperature":%s}' % n for n in (b"NaN", b"Infinity", b"1e999", b"-1e999")]


async def test_what_is_no_json_object_of_finite_numbers(serve):
    async with serve() as server:
        for body in BODIES + NUMBERS:
            response = await server.api.post(
                "/v1/completions", content=body, headers={"content-type": "application/json"}
            )
            assert response.status_code == 400, body[:40]
            refusal(response)


async def test_contradictions(serve):
    async with serve() as server:
        assert refusal(await server.chat(min_tokens=9, max_tokens=3))["param"] == "min_tokens"
        assert refusal(await server.chat(max_tokens=1, max_completion_tokens=2))["param"] == "max_completion_tokens"
        assert refusal(await server.complete(echo=True, logprobs=20, prompt=[[5] * 511] * 64))["param"] == "echo"
        both = await server.chat(logprobs=True, top_logprobs=2, logprob_token_ids=[5])
        assert refusal(both)["param"] == "logprob_token_ids"
        unsure = await server.chat(continue_final_message=True, add_generation_prompt=True)
        assert refusal(unsure)["param"] == "continue_final_message"
        usage = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
        assert refusal(await server.chat(**usage))["param"] == "stream_options.continuous_usage_stats"


async def test_context_overflow_names_the_numbers(serve):
    async with serve() as server:
        answer = await server.complete(prompt=[5] * 500, max_tokens=13)
        prompt = await server.complete(prompt="word " * 600, stream=True)
        huge = await server.complete(prompt="x" * 1_000_000)
        fits = await server.complete(prompt=[5] * 500, max_tokens=12)
    error = refusal(answer)
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert all(number in error["message"] for number in ("512", "513", "500", "13"))
    assert refusal(prompt)["code"] == refusal(huge)["code"] == "context_length_exceeded"
    assert fits.status_code == 200


async def test_unknown_model_path_and_method(serve):
    async with serve() as server:
        model = await server.chat(model="gpt-9")
        path = await server.api.get("/v1/nothing")
        slash = await server.api.post("/v1/chat/completions/", json={})
        method = await server.api.get("/v1/chat/completions")
        named = await server.api.get("/v1/models/gpt-9")
        admin = [await server.api.get(p) for p in ("/metrics", "/v1/octavo/load", "/v1/octavo/drain")]
    assert (model.status_code, refusal(model)["code"], refusal(model)["param"]) == (404, "model_not_found", "model")
    assert {r.status_code for r in (path, slash, named, *admin)} == {404}
    assert refusal(named)["code"] == "model_not_found"
    assert method.status_code == 405
    assert method.headers["allow"] == "POST"
    for response in (path, slash, method, *admin):
        refusal(response)


async def test_only_json_of_bounded_size(serve):
    async def chunks():
        for _ in range(9):
            yield b" " * 2**20

    headers = {"content-type": "application/json"}
    async with serve(listen=True) as server:
        form = await server.api.post("/v1/completions", data={"a": "b"})
        zipped = await server.api.post("/v1/completions", content=b"{}", headers=headers | {"content-encoding": "gzip"})
        declared = await server.api.post("/v1/completions", content=b" " * (8 * 2**20 + 1), headers=headers)
        undeclared = await server.api.post("/v1/completions", content=chunks(), headers=headers)
    assert form.status_code == zipped.status_code == 415
    assert declared.status_code == undeclared.status_code == 413
    for response in (form, zipped, declared, undeclared):
        refusal(response)


async def test_a_full_queue_refuses_at_once(serve):
    async with serve(max_queued=2, hold=True) as server:
        streams = [asyncio.create_task(server.complete(max_tokens=3)) for _ in range(10)]
        await eventually_async(lambda: len(server.engine.seen) == 10)
        refused = await server.complete(max_tokens=3, stream=True)
        server.release()
        answers = await asyncio.gather(*streams)
    assert (refused.status_code, refusal(refused)["code"]) == (503, "overloaded")
    assert 0 < int(refused.headers["retry-after"]) <= 120
    assert {answer.status_code for answer in answers} == {200}


async def test_prompts_of_one_request_are_taken_together_or_not_at_all(serve):
    async with serve(max_queued=2, listen=True, hold=True) as server:
        first = asyncio.create_task(server.complete(prompt="x", max_tokens=1))
        await eventually_async(lambda: len(server.engine.seen) == 1)
        refused = await server.complete(prompt=["x"] * 5, n=2)
        assert len(server.engine.seen) == 1
        server.release()
        await first
        taken = await server.complete(prompt=["x"] * 5, n=2)
        metrics = (await server.admin.get("/metrics")).text
    assert (refused.status_code, taken.status_code, len(server.engine.seen)) == (503, 200, 6)
    assert 'octavo:admission_rejections_total{model_name="m",reason="queue_full"} 1.0' in metrics
    assert 'octavo:prompt_tokens_total{model_name="m"} 6.0' in metrics


@pytest.mark.parametrize("fields", [{"prompt": ["x"] * 11}, {"prompt": ["x"] * 2, "n": 6}, {"prompt": "x", "n": 11}])
async def test_more_sequences_than_an_empty_server_accepts_are_400(serve, fields):
    async with serve(max_queued=2) as server:
        response = await server.complete(**fields)
        chat = await server.chat(n=11)
    for refused in (response, chat):
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "n"
        assert "10 at once (8 running and 2 waiting)" in refused.json()["error"]["message"]
    assert server.engine.seen == []


async def test_request_ids(serve):
    async with serve() as server:
        mine = await server.api.get("/version", headers={"x-request-id": "abc-1.2_3"})
        forged = await server.api.get("/version", headers={"x-request-id": "a b\tc"})
        refused = await server.api.get("/nothing", headers={"x-request-id": "abc"})
    assert mine.headers["x-request-id"] == "abc-1.2_3"
    assert forged.headers["x-request-id"].isalnum()
    assert refused.headers["x-request-id"] == "abc"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", "m"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    [*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, "unknown", "\x00", "a`b", "$.x"]
)


@given(st.dictionaries(fields, values, max_size=4), st.sampled_from([ChatRequest, CompletionRequest]))
@settings(max_examples=scaled(70), deadline=None)
def test_no_body_is_worse_than_refused(body, kind):
    refused = None
    try:
        decode(json.dumps(body).encode("utf-8", "surrogatepass"), kind)
    except ApiError as error:
        refused = error
    finite = all(not isinstance(v, float) or math.isfinite(v) for v in body.values())
    assert (refused is None and finite) or refused.status == 400


ODD_VALUES = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "\u0000",
    [],
    ["x"],
    [[1]],
    [0],
    {},
    {"type": "text"},
    {"a": {"b": []}},
]


async def test_no_value_in_any_field_breaks_the_server(serve):
    statuses = set()
    async with serve(answer="one two") as server:
        for path, kind in (("chat/completions", ChatRequest), ("completions", CompletionRequest)):
            for field in kind.__struct_fields__:
                for value in ODD_VALUES:
                    start = {"messages": [{"role": "user", "content": "x"}]} if kind is ChatRequest else {"prompt": "x"}
                    body = {"model": "m", "max_tokens": 2} | start | {field: value}
                    response = await server.api.post(f"/v1/{path}", json=body)
                    statuses.add(response.status_code)
                    assert response.status_code in {200, 400, 404}, (field, value, response.text)
    assert statuses == {200, 400, 404}


async def test_a_wrong_method_is_answered_with_all_that_the_path_takes(serve):
    async with serve() as server:
        response = await server.api.put("/v1/responses/resp_1", json={})
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, GET, HEAD"
