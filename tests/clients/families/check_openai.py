"""openai: chat, text, responses and embeddings, whole, streamed and async; tools, typed answers, errors, retries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from answers import Report
from checks import (
    CITIES,
    COUNT,
    LONG_ANSWER,
    LONG_PROMPT,
    PARAMETERS,
    QUESTION,
    WRONG_KEY,
    Place,
    asleep,
    assert_cancelled,
    assert_idle,
    cancel_task,
    raises,
    run,
)
from openai import AsyncOpenAI, OpenAI

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "temperature", "description": "The temperature in a city.", "parameters": PARAMETERS},
}


def client(place: Place, **options: Any) -> OpenAI:
    """The client, without retries by default."""
    return OpenAI(**{"base_url": place.base_url, "api_key": place.key, "max_retries": 0} | options)


def given(place: Place, **options: Any) -> Any:
    """What a chat completion gives."""
    return {"model": place.model, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 24} | options


def chat(place: Place) -> None:
    """Chat completions, completions and responses; two choices; the list of models."""
    one = client(place)
    assert place.model in [model.id for model in one.models.list()]
    found = one.chat.completions.create(**given(place, n=2))
    assert [choice.message.content for choice in found.choices] == [found.choices[0].message.content] * 2
    assert found.usage
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    text = one.completions.create(model=place.model, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
    assert text.choices[0].text
    assert text.choices[0].logprobs
    first = one.responses.create(model=place.model, input=QUESTION, max_output_tokens=24, temperature=0)
    assert first.output_text
    second = one.responses.create(
        model=place.model, input="And in Oslo?", previous_response_id=first.id, max_output_tokens=24
    )
    assert second.usage
    assert first.usage
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def stream(place: Place) -> None:
    """The text of the whole answer, and its usage; by all three APIs."""
    one = client(place)
    whole = one.chat.completions.create(**given(place))
    chunks = list(one.chat.completions.create(**given(place, stream=True, stream_options={"include_usage": True})))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) > 2
    assert chunks[-1].usage
    assert whole.usage
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    text: Any = {"model": place.model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    parts = [chunk.choices[0].text for chunk in one.completions.create(**text, stream=True)]
    assert "".join(parts) == one.completions.create(**text).choices[0].text
    asked: Any = {"model": place.model, "input": QUESTION, "max_output_tokens": 24, "temperature": 0}
    with one.responses.stream(**asked) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == events.get_final_response().output_text


def asynchronous(place: Place) -> None:
    """Eight at once, and a stream."""

    async def all_at_once() -> None:
        async with AsyncOpenAI(base_url=place.base_url, api_key=place.key, max_retries=0) as one:
            found = await asyncio.gather(*(one.chat.completions.create(**given(place)) for _ in range(8)))
            texts = [each.choices[0].message.content for each in found]
            stream = await one.chat.completions.create(**given(place, stream=True))
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            assert texts == [streamed] * 8

    asyncio.run(all_at_once())


def tools(place: Place) -> None:
    """A required call, its result, an answer; a named one; streamed, the call is the same."""
    one = client(place)
    asked = given(place, tools=[TOOL], parallel_tool_calls=False, max_completion_tokens=96)
    message = one.chat.completions.create(**asked, tool_choice="required").choices[0].message
    assert message.tool_calls
    [call] = message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES
    after = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "27"}]
    assert one.chat.completions.create(**asked | {"messages": after}, tool_choice="none").choices[0].message.content
    named: Any = {"type": "function", "function": {"name": "temperature"}}
    assert one.chat.completions.create(**asked, tool_choice=named).choices[0].message.tool_calls
    with one.chat.completions.stream(**asked, tool_choice="required") as events:
        arguments = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(arguments) == call.function.arguments
    function: Any = {"type": "function", "name": "temperature", "parameters": PARAMETERS, "strict": True}
    response = one.responses.create(model=place.model, input=QUESTION, tools=[function], tool_choice="required")
    assert json.loads(response.output[-1].arguments)["city"] in CITIES


def structured_output(place: Place) -> None:
    """Types of pydantic by chat completions and by responses, and JSON mode."""
    one = client(place)
    asked = given(place, max_completion_tokens=96)
    assert isinstance(one.chat.completions.parse(**asked, response_format=Report).choices[0].message.parsed, Report)
    found = one.responses.parse(model=place.model, input=QUESTION, text_format=Report, max_output_tokens=96)
    assert isinstance(found.output_parsed, Report)
    loose = one.chat.completions.create(
        **asked | {"max_completion_tokens": 400}, response_format={"type": "json_object"}
    )
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(loose.choices[0].message.content or ""), dict)


def embeddings(place: Place) -> None:
    """One vector for each text, also in base64, which the client asks for by itself."""
    one = client(place)
    found = [
        one.embeddings.create(model=place.model, input=["a", "b c"], encoding_format=form)
        for form in ("float", "base64")
    ]
    vectors = [each.embedding for each in found[0].data]
    assert len(vectors) == 2
    assert len(vectors[0]) == len(vectors[1]) > 1
    plain = one.embeddings.create(model=place.model, input=["a", "b c"])
    assert max(abs(a - b) for a, b in zip(plain.data[1].embedding, vectors[1], strict=True)) < 1e-5


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong field, a wrong key, and a key's limit, each as its own class."""
    one = client(place)
    long = raises(
        openai.BadRequestError,
        lambda: one.chat.completions.create(**given(place, messages=[{"role": "user", "content": LONG_PROMPT}])),
    )
    assert long.code == "context_length_exceeded"
    assert raises(openai.BadRequestError, lambda: one.chat.completions.create(**given(place, top_p=2))).param == "top_p"
    raises(openai.NotFoundError, lambda: one.chat.completions.create(**given(place, model="no-such-model")))
    wrong = client(place, api_key=WRONG_KEY)
    raises(openai.AuthenticationError, lambda: wrong.chat.completions.create(**given(place)))
    if place.limited_key:
        limited = client(place, api_key=place.limited_key)
        refused = raises(
            openai.RateLimitError, lambda: [limited.chat.completions.create(**given(place)) for _ in range(2)]
        )
        assert refused.code == "rate_limit_exceeded"
        assert int(refused.response.headers["retry-after"]) >= 1


def retries(place: Place) -> None:
    """503 is an `InternalServerError`; with retries the answer comes."""
    with asleep(place):
        raises(openai.InternalServerError, lambda: client(place).chat.completions.create(**given(place)))
        assert client(place, max_retries=8).chat.completions.create(**given(place)).choices[0].message.content


def cancel(place: Place) -> None:
    """A stream that is closed, an async call that is cancelled, and one that ran out of time."""
    long = given(
        place, messages=[{"role": "user", "content": COUNT}], max_completion_tokens=LONG_ANSWER,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    one = client(place)
    chunks = one.chat.completions.create(**long, stream=True)
    next(chunks)
    assert_cancelled(place, chunks.close)

    async def cancelled() -> None:
        async with AsyncOpenAI(base_url=place.base_url, api_key=place.key, max_retries=0) as other:
            task = asyncio.create_task(other.chat.completions.create(**long))
            await cancel_task(place, task)

    asyncio.run(cancelled())
    raises(openai.APITimeoutError, lambda: client(place, timeout=1).chat.completions.create(**long))
    assert_idle(place)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=asynchronous,
        tools=tools,
        structured_output=structured_output,
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=cancel,
    )
