"""Tools of the real server with the model from its package, as the clients of OpenAI and Anthropic see them."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

MODEL = "smollm2"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Tells the weather of a city.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
TIME = {
    "type": "function",
    "function": {"name": "time", "parameters": {"type": "object", "additionalProperties": False}},
}
QUESTION = {"role": "user", "content": "How warm is it in Paris?"}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def url(server) -> str:
    return str(server.api.base_url).rstrip("/")


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def asked(**fields):
    return {"model": MODEL, "messages": [QUESTION], "tools": [TOOL, TIME], "temperature": 0, "max_tokens": 200} | fields


def is_weather(arguments: str) -> bool:
    found = json.loads(arguments)
    return set(found) == {"city", "unit"} and found["unit"] in {"C", "F"} and isinstance(found["city"], str)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_is_enforced_whole_and_streamed(client, choice):
    whole = client.chat.completions.create(**asked(tool_choice=choice, parallel_tool_calls=False)).choices[0]
    [call] = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert call.function.name in {"weather", "time"}
    assert is_weather(call.function.arguments) or call.function.arguments == "{}"
    with client.chat.completions.stream(**asked(tool_choice=choice, parallel_tool_calls=False)) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    assert streamed.message.tool_calls[0].id.startswith("call_")


ANY_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
CITY_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": ANY_CITY},
}


def two_cities(first, second):
    return {"role": "user", "content": f"What is the weather in {first} and in {second}?"}


def two_calls(*cities):
    """An earlier answer. A model this small makes two calls only if the conversation shows how."""
    calls = [
        {"id": city, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
        for city in cities
    ]
    return {"role": "assistant", "tool_calls": calls}


EXAMPLES = [
    two_cities("Oslo", "Bern"),
    two_calls("Oslo", "Bern"),
    two_cities("Lima", "Cairo"),
    two_calls("Lima", "Cairo"),
    two_cities("Paris", "Rome"),
]


def cities_of(message):
    return [json.loads(call.function.arguments)["city"] for call in message.tool_calls]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_two_calls_in_one_answer_whole_and_streamed(client, choice):
    fields = {"messages": EXAMPLES, "tools": [CITY_TOOL], "tool_choice": choice}
    whole = client.chat.completions.create(**asked(**fields)).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert cities_of(whole.message) == ["Paris", "Rome"]
    with client.chat.completions.stream(**asked(**fields)) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert (streamed.finish_reason, streamed.message.content or None) == ("tool_calls", None)
    assert [(call.function.name, call.function.arguments) for call in streamed.message.tool_calls] == [
        (call.function.name, call.function.arguments) for call in whole.message.tool_calls
    ]
    assert len({call.id for call in whole.message.tool_calls + streamed.message.tool_calls}) == 4
    one = client.chat.completions.create(**asked(parallel_tool_calls=False, **fields)).choices[0]
    assert (one.finish_reason, cities_of(one.message)) == ("tool_calls", ["Paris"])


def test_the_results_of_two_calls_are_answered(client):
    whole = client.chat.completions.create(**asked(messages=EXAMPLES, tools=[CITY_TOOL], tool_choice="required"))
    message = whole.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"{10 + number} degrees"}
        for number, call in enumerate(message.tool_calls)
    ]
    history = [*EXAMPLES, message.model_dump(exclude_none=True), *results]
    answer = client.chat.completions.create(
        **asked(messages=history, tools=[CITY_TOOL], tool_choice="none", max_tokens=40)
    )
    assert answer.choices[0].message.content


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_any_sampling_match_the_schema(client, seed):
    fields = {"tool_choice": NAMED, "temperature": 1.5, "seed": seed, "n": 3, "parallel_tool_calls": False}
    for choice in client.chat.completions.create(**asked(**fields)).choices:
        [call] = choice.message.tool_calls
        assert call.function.name == "weather"
        assert choice.finish_reason == "length" or is_weather(call.function.arguments)


def test_a_result_is_answered(client):
    whole = client.chat.completions.create(**asked(tool_choice=NAMED, parallel_tool_calls=False))
    message = whole.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is 25 degrees in Paris."}
    history = [QUESTION, message.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**asked(messages=history, tool_choice="none", max_tokens=40)).choices[0]
    assert answer.message.content
    assert answer.message.tool_calls is None


def test_an_answer_may_be_json_instead_of_a_call(client):
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(**asked(response_format=shape)).choices[0].message
    assert is_weather(answer.content) if answer.content else answer.tool_calls


def test_a_function_in_the_older_form_is_called(client):
    choice = client.chat.completions.create(
        model=MODEL, messages=[QUESTION], functions=[FUNCTION], function_call={"name": "weather"}, temperature=0
    ).choices[0]
    assert choice.finish_reason == "function_call"
    assert is_weather(choice.message.function_call.arguments)


def test_claude_calls_a_tool_whole_and_streamed(claude):
    tool = {"name": "weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
    fields = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [QUESTION],
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    whole = claude.messages.create(**fields)
    [block] = whole.content
    assert (whole.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "weather")
    assert is_weather(json.dumps(block.input))
    with claude.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.content[0].input) == ("tool_use", block.input)
    answer = {"role": "assistant", "content": [block.model_dump(include={"type", "id", "name", "input"})]}
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "25 degrees"}]}
    history = [QUESTION, answer, {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]}]
    final = claude.messages.create(**fields | {"messages": history, "tool_choice": {"type": "none"}, "max_tokens": 30})
    assert final.content[0].type == "text"
    counted = claude.messages.count_tokens(model=MODEL, messages=[QUESTION], tools=[tool])
    assert counted.input_tokens > claude.messages.count_tokens(model=MODEL, messages=[QUESTION]).input_tokens


def test_claude_and_responses_have_two_calls_in_one_answer(claude, client):
    said = [
        message
        if message["role"] == "user"
        else {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in message["tool_calls"]
            ],
        }
        for message in EXAMPLES
    ]
    function = CITY_TOOL["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": ANY_CITY}
    fields = {"model": MODEL, "max_tokens": 200, "messages": said, "tools": [tool], "extra_body": {"temperature": 0}}
    with claude.messages.stream(**fields, tool_choice={"type": "any"}) as stream:
        blocks = stream.get_final_message().content
    assert [(block.type, block.input) for block in blocks] == [
        ("tool_use", {"city": "Paris"}),
        ("tool_use", {"city": "Rome"}),
    ]
    items = []
    for message in EXAMPLES:
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", [])
        ] or [message]
    flat = {"type": "function", **function}
    response = client.responses.create(
        model=MODEL, input=items, tools=[flat], tool_choice="required", temperature=0, max_output_tokens=200
    )
    assert [(item.type, json.loads(item.arguments)) for item in response.output] == [
        ("function_call", {"city": "Paris"}),
        ("function_call", {"city": "Rome"}),
    ]


def test_a_response_calls_a_function_and_goes_on(client):
    tool = {"type": "function", **FUNCTION, "strict": True}
    fields = {"model": MODEL, "input": "How warm is it in Paris?", "tools": [tool], "temperature": 0}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    whole = client.responses.create(**fields)
    [call] = whole.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert is_weather(call.arguments)
    with client.responses.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert streamed.output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "25 degrees"}
    fields |= {"input": [result], "previous_response_id": whole.id, "tool_choice": "none", "max_output_tokens": 30}
    final = client.responses.create(**fields)
    assert final.output_text
