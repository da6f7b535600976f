"""litellm: chat, text, responses, messages and embeddings, streamed and async; tools, typed answers, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
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
    assert_running,
    cancel_task,
    raises,
    run,
)

TOOL = {
    "type": "function",
    "function": {"name": "temperature", "description": "The temperature in a city.", "parameters": PARAMETERS},
}
MESSAGES = [{"role": "user", "content": QUESTION}]
COUNTING = [{"role": "user", "content": COUNT}]
TEXT = "Once upon a time"
# By `hosted_vllm` it uses a client of its own, and by `anthropic` the Messages API.
PROVIDERS = ("openai", "hosted_vllm", "anthropic")


def access(place: Place, provider: str = "openai") -> dict[str, Any]:
    """What every call gives, without retries by default."""
    base = place.url if provider == "anthropic" else place.base_url
    return {"model": f"{provider}/{place.model}", "api_base": base, "api_key": place.key, "num_retries": 0}


def given(place: Place, provider: str = "openai", **options: Any) -> dict[str, Any]:
    """What a chat gives."""
    return access(place, provider) | {"messages": MESSAGES, "temperature": 0, "max_tokens": 24} | options


def text(place: Place, **options: Any) -> dict[str, Any]:
    """What a text completion gives."""
    return access(place, "text-completion-openai") | {"prompt": TEXT, "temperature": 0, "max_tokens": 8} | options


def response(place: Place, **options: Any) -> dict[str, Any]:
    """What a response gives."""
    return access(place) | {"input": QUESTION, "temperature": 0, "max_output_tokens": 24} | options


def output_text(found: Any) -> str:
    """The text of a response."""
    return found.output[-1].content[0].text


def chat(place: Place) -> None:
    """As OpenAI, as vLLM and as Anthropic; text completions and responses; usage."""
    for provider in PROVIDERS:
        found = litellm.completion(**given(place, provider))
        assert found.choices[0].message.content
        assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert litellm.text_completion(**text(place)).choices[0].text
    first = litellm.responses(**response(place))
    assert output_text(first)
    second = litellm.responses(**response(place, input="And in Oslo?", previous_response_id=first.id))
    assert second.usage.input_tokens > first.usage.total_tokens


def stream(place: Place) -> None:
    """The text of the whole answer, and its usage; text completions and responses."""
    for provider in PROVIDERS:
        whole = litellm.completion(**given(place, provider))
        chunks = list(litellm.completion(**given(place, provider, stream=True, stream_options={"include_usage": True})))
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == whole.choices[0].message.content
        assert len(texts) > 2
        usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert usage[-1].completion_tokens == whole.usage.completion_tokens
    parts = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**text(place, stream=True))]
    assert "".join(parts) == litellm.text_completion(**text(place)).choices[0].text
    events = list(litellm.responses(**response(place, stream=True)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == output_text(litellm.responses(**response(place)))


async def asynchronous(place: Place) -> None:
    """Eight at once, and a stream; responses, and messages, which are async only."""
    for provider in PROVIDERS:
        found = await asyncio.gather(*(litellm.acompletion(**given(place, provider)) for _ in range(8)))
        chunks = await litellm.acompletion(**given(place, provider, stream=True))
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
        assert [each.choices[0].message.content for each in found] == [streamed] * 8
    assert output_text(await litellm.aresponses(**response(place)))
    message = await litellm.anthropic.messages.acreate(**given(place, "anthropic"))
    assert message["content"][0]["text"] == streamed


def tools(place: Place) -> None:
    """A required call, its result, an answer; streamed, the call is the same; a named one; and by responses."""
    for provider in PROVIDERS:
        asked = given(place, provider, max_tokens=96, tools=[TOOL])
        required = asked | {"tool_choice": "required", "parallel_tool_calls": False}
        message = litellm.completion(**required).choices[0].message
        [call] = message.tool_calls
        assert json.loads(call.function.arguments)["city"] in CITIES
        after = [*MESSAGES, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "27"}]
        answer = litellm.completion(**asked | {"messages": after, "tool_choice": "none"})
        assert answer.choices[0].message.content
        chunks = list(litellm.completion(**required, stream=True))
        built = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message
        assert json.loads(built.tool_calls[0].function.arguments) == json.loads(call.function.arguments)
        named = {"type": "function", "function": {"name": "temperature"}}
        assert litellm.completion(**asked, tool_choice=named).choices[0].message.tool_calls
    function = {"type": "function", "name": "temperature", "parameters": PARAMETERS, "strict": True}
    found = litellm.responses(**response(place, tools=[function], tool_choice="required", max_output_tokens=96))
    assert json.loads(found.output[-1].arguments)["city"] in CITIES


def structured_output(place: Place) -> None:
    """By JSON schema, from each provider and from responses, and JSON mode."""
    for provider in PROVIDERS:
        found = litellm.completion(**given(place, provider, max_tokens=96, response_format=Report))
        Report.model_validate_json(found.choices[0].message.content)
    Report.model_validate_json(
        output_text(litellm.responses(**response(place, max_output_tokens=96, text_format=Report)))
    )
    loose = litellm.completion(**given(place, max_tokens=400, response_format={"type": "json_object"})).choices[0]
    if loose.finish_reason == "stop":
        assert isinstance(json.loads(loose.message.content), dict)


def embeddings(place: Place) -> None:
    """One vector for each text, also async, as OpenAI and as vLLM."""
    for provider in ("openai", "hosted_vllm"):
        asked = access(place, provider) | {"input": ["a", "b c"]}
        for found in (litellm.embedding(**asked), asyncio.run(litellm.aembedding(**asked))):
            first, second = (each["embedding"] for each in found.data)
            assert len(first) == len(second) > 1


def errors(place: Place) -> None:
    """Too long a prompt, a wrong field, an unknown model, a wrong key, and a key's limit, each as its own class."""
    long = [{"role": "user", "content": LONG_PROMPT}]
    for provider in PROVIDERS:
        for expected, changes in (
            (litellm.ContextWindowExceededError, {"messages": long}),
            (litellm.BadRequestError, {"top_p": 2}),
            (litellm.NotFoundError, {"model": f"{provider}/no-such-model"}),
            (litellm.AuthenticationError, {"api_key": WRONG_KEY}),
        ):
            asked = given(place, provider) | changes
            raises(expected, lambda asked=asked: litellm.completion(**asked))
            raises(expected, lambda asked=asked: list(litellm.completion(**asked, stream=True)))
    raises(litellm.ContextWindowExceededError, lambda: litellm.responses(**response(place, input=LONG_PROMPT)))
    if place.limited_key:
        limited = given(place, api_key=place.limited_key)
        raises(litellm.RateLimitError, lambda: [litellm.completion(**limited) for _ in range(2)])


def retries(place: Place) -> None:
    """503 is an error of the server; with retries the answer comes, sync, async, and by the router."""
    with asleep(place):
        for provider in PROVIDERS:
            asked = given(place, provider)
            kind = litellm.InternalServerError if provider == "anthropic" else litellm.ServiceUnavailableError
            raises(kind, lambda asked=asked: litellm.completion(**asked))
        assert litellm.completion(**given(place, num_retries=8)).choices[0].message.content
    with asleep(place):
        found = asyncio.run(litellm.acompletion(**given(place, num_retries=8)))
        assert found.choices[0].message.content
    parameters = {name: value for name, value in access(place, "hosted_vllm").items() if name != "num_retries"}
    deployment = {"model_name": "any", "litellm_params": parameters}
    router = litellm.Router(model_list=[deployment], num_retries=8, retry_after=1, disable_cooldowns=True)
    with asleep(place):
        assert router.completion(model="any", messages=MESSAGES, max_tokens=8).choices[0].message.content


def long_answer(place: Place, provider: str) -> dict[str, Any]:
    """What asks for an answer without an end. The Messages API has no field for that: there it just counts for long."""
    endless = {} if provider == "anthropic" else {"extra_body": {"ignore_eos": True}}
    return given(place, provider, messages=COUNTING, max_tokens=LONG_ANSWER, **endless)


def cancel(place: Place) -> None:
    """A stream that is closed, and a call that ran out of time."""
    for provider in PROVIDERS:
        asked = long_answer(place, provider)
        chunks = litellm.completion(**asked, stream=True)
        next(chunks)
        assert_cancelled(place, chunks.close)
        raises(litellm.Timeout, lambda asked=asked: litellm.completion(**asked, timeout=1))
        assert_idle(place)


async def cancelled_task(place: Place) -> None:
    """An async call, and an async stream that is closed."""
    for provider in PROVIDERS:
        asked = long_answer(place, provider)
        task = asyncio.create_task(litellm.acompletion(**asked))
        await cancel_task(place, task)
        chunks = await litellm.acompletion(**asked, stream=True)
        await anext(chunks)
        await asyncio.to_thread(assert_running, place)
        await chunks.aclose()
        await asyncio.to_thread(assert_idle, place)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=lambda place: asyncio.run(asynchronous(place)),
        tools=tools,
        structured_output=structured_output,
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=(cancel, lambda place: asyncio.run(cancelled_task(place))),
    )
