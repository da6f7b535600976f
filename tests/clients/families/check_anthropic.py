"""anthropic: messages whole, streamed and async, counted tokens, tools, typed answers, errors, retries, cancel."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic
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
from pydantic import BaseModel

City = Literal[CITIES]
TOOL: Any = {
    "name": "temperature",
    "description": "The temperature in a city.",
    "input_schema": PARAMETERS,
}


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int  # the client takes bounds of numbers out of the schema


def client(place: Place, **options: Any) -> Anthropic:
    """The client, without retries by default."""
    return Anthropic(**{"base_url": place.url, "api_key": place.key, "max_retries": 0} | options)


def given(place: Place, content: str = QUESTION, **options: Any) -> Any:
    """What a message gives. The client has no argument for the temperature any more; the API keeps the field."""
    greedy = {"model": place.model, "max_tokens": 24, "extra_body": {"temperature": 0}}
    return greedy | {"messages": [{"role": "user", "content": content}]} | options


def text_of(message: Any) -> str:
    """The text of a message."""
    return "".join(block.text for block in message.content if block.type == "text")


def chat(place: Place) -> None:
    """A message with a system prompt and its usage, a history, counted tokens, the list of models."""
    one = client(place)
    assert place.model in [model.id for model in one.models.list()]
    first = one.messages.create(**given(place, system="Answer briefly."))
    assert text_of(first)
    counted = one.messages.count_tokens(model=place.model, messages=given(place)["messages"], system="Answer briefly.")
    assert counted.input_tokens == first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    history = [*given(place)["messages"], first.to_param(), {"role": "user", "content": "And in Oslo?"}]
    assert text_of(one.messages.create(**given(place, messages=history)))


def stream(place: Place) -> None:
    """The text of the whole message, by the helper and by raw events."""
    one = client(place)
    whole = one.messages.create(**given(place))
    with one.messages.stream(**given(place)) as events:
        texts = list(events.text_stream)
        assert "".join(texts) == text_of(events.get_final_message()) == text_of(whole)
    assert len(texts) > 2
    raw = [event.type for event in one.messages.create(**given(place, stream=True))]
    assert (raw[0], raw[-1]) == ("message_start", "message_stop")


def asynchronous(place: Place) -> None:
    """Eight at once, and a stream."""

    async def streamed(one: AsyncAnthropic) -> str:
        async with one.messages.stream(**given(place)) as events:
            return "".join([text async for text in events.text_stream])

    async def all_at_once() -> None:
        async with AsyncAnthropic(base_url=place.url, api_key=place.key, max_retries=0) as one:
            found = await asyncio.gather(*(one.messages.create(**given(place)) for _ in range(8)))
            assert [text_of(each) for each in found] == [await streamed(one)] * 8

    asyncio.run(all_at_once())


def tools(place: Place) -> None:
    """A required call, its result, an answer; a named one; streamed, the call is the same."""
    one = client(place)
    asked = given(place, tools=[TOOL], max_tokens=96)
    required = asked | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = one.messages.create(**required)
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.input["city"] in CITIES
    assert message.stop_reason == "tool_use"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "27"}]}
    after = asked | {"messages": [*asked["messages"], message.to_param(), result], "tool_choice": {"type": "none"}}
    assert text_of(one.messages.create(**after))
    named = one.messages.create(**asked | {"tool_choice": {"type": "tool", "name": "temperature"}})
    assert named.content[-1].type == "tool_use"
    with one.messages.stream(**required) as events:
        partial = [event.partial_json for event in events if event.type == "input_json"]
        [streamed] = [block for block in events.get_final_message().content if block.type == "tool_use"]
    assert len(partial) > 1
    assert streamed.input == call.input


def structured_output(place: Place) -> None:
    """`parse` with a type of pydantic, whole and streamed."""
    one = client(place)
    asked = given(place, max_tokens=96)
    assert isinstance(one.messages.parse(**asked, output_format=Report).parsed_output, Report)
    with one.messages.stream(**asked, output_format=Report) as events:
        assert isinstance(events.get_final_message().parsed_output, Report)


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong field, a wrong key, and a key's limit, each as its own class."""
    one = client(place)
    long = raises(anthropic.BadRequestError, lambda: one.messages.create(**given(place, LONG_PROMPT)))
    assert "prompt is too long" in str(long)
    wrong_field = given(place, extra_body={"temperature": 2})
    assert "temperature" in str(raises(anthropic.BadRequestError, lambda: one.messages.create(**wrong_field)))
    raises(anthropic.NotFoundError, lambda: one.messages.create(**given(place, model="no-such-model")))
    wrong = client(place, api_key=WRONG_KEY)
    refused = raises(anthropic.AuthenticationError, lambda: wrong.messages.create(**given(place)))
    assert refused.type == "authentication_error"
    assert refused.request_id
    if place.limited_key:
        limited = client(place, api_key=place.limited_key)
        limit = raises(anthropic.RateLimitError, lambda: [limited.messages.create(**given(place)) for _ in range(2)])
        assert limit.type == "rate_limit_error"
        assert int(limit.response.headers["retry-after"]) >= 1


def retries(place: Place) -> None:
    """503 is an `InternalServerError`; with retries the message comes."""
    with asleep(place):
        raises(anthropic.InternalServerError, lambda: client(place).messages.create(**given(place)))
        assert text_of(client(place, max_retries=8).messages.create(**given(place)))


def cancel(place: Place) -> None:
    """A stream that is closed, an async call that is cancelled, and one that ran out of time."""
    long = given(place, COUNT, max_tokens=LONG_ANSWER, extra_body={"temperature": 0})
    chunks = client(place).messages.create(**long, stream=True)
    next(iter(chunks))
    assert_cancelled(place, chunks.close)

    async def cancelled() -> None:
        async with AsyncAnthropic(base_url=place.url, api_key=place.key, max_retries=0) as other:
            task = asyncio.create_task(other.messages.create(**long))
            await cancel_task(place, task)

    asyncio.run(cancelled())
    raises(anthropic.APITimeoutError, lambda: client(place, timeout=1).messages.create(**long))
    assert_idle(place)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=asynchronous,
        tools=tools,
        structured_output=structured_output,
        embeddings="Anthropic's API has no embeddings",
        errors=errors,
        retries=retries,
        cancel=cancel,
    )
