"""langchain: `ChatOpenAI` by chat completions and by responses, `OpenAI`, embeddings, and `create_agent`'s loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from answers import City, Report
from checks import (
    CITIES,
    COUNT,
    DEGREES,
    LONG_ANSWER,
    LONG_PROMPT,
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
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, wrap_model_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelTimeoutError,
)
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

FACT = "It is 21 degrees in Paris."
BOTH_APIS = (False, True)  # `use_responses_api`


@tool
def temperature(city: City, unit: Literal["celsius", "kelvin"]) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} {unit}"


def forced(request: ModelRequest) -> ModelRequest:
    """The first turn has to call a tool, later ones must not."""
    called = any(isinstance(message, ToolMessage) for message in request.messages)
    return request.override(tool_choice="none" if called else "required")


@wrap_model_call
def the_tool_first(request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
    """As `forced` says."""
    return handler(forced(request))


@wrap_model_call
async def the_tool_first_async(request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
    """As `forced` says."""
    return await handler(forced(request))


def access(place: Place) -> dict[str, Any]:
    """The options that every class takes: address and key of the server, and no retries."""
    return {"model": place.model, "base_url": place.base_url, "api_key": place.key, "max_retries": 0}


def model(place: Place, **options: Any) -> ChatOpenAI:
    """The model that chats."""
    return ChatOpenAI(**access(place) | {"temperature": 0, "max_completion_tokens": 96} | options)


def writer(place: Place) -> OpenAI:
    """The model that continues texts."""
    return OpenAI(**access(place), temperature=0, max_tokens=24)


def chat(place: Place) -> None:
    """Chat completions, responses, completions; usage; a batch; a conversation that the server remembers."""
    for responses in BOTH_APIS:
        one = model(place, use_responses_api=responses, max_completion_tokens=24)
        found = one.invoke(QUESTION)
        assert found.text
        assert found.usage_metadata
        assert found.usage_metadata["output_tokens"] <= 24
        assert [each.text for each in one.batch([QUESTION] * 2)] == [found.text] * 2
    one = model(place, use_previous_response_id=True, max_completion_tokens=24)
    first = one.invoke(QUESTION)
    second = one.invoke([("user", QUESTION), first, ("user", "And in Oslo?")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]
    assert writer(place).invoke("Once upon a time")


def stream(place: Place) -> None:
    """The text of the whole answer, and its usage; by all three APIs."""
    for responses in BOTH_APIS:
        one = model(place, use_responses_api=responses, stream_usage=True, max_completion_tokens=24)
        whole, chunks = one.invoke(QUESTION), list(one.stream(QUESTION))
        together: AIMessageChunk = sum(chunks[1:], chunks[0])
        assert together.text == whole.text
        assert sum(bool(chunk.text) for chunk in chunks) > 2
        assert together.usage_metadata == whole.usage_metadata
    parts = list(writer(place).stream("Once upon a time"))
    assert "".join(parts) == writer(place).invoke("Once upon a time")
    assert len(parts) > 2


def streamed_calls(place: Place) -> None:
    """Calls of tools arrive in chunks, which together are those of the whole answer; an agent passes chunks on."""
    for responses in BOTH_APIS:
        one = model(place, use_responses_api=responses)
        bound = one.bind_tools([temperature], tool_choice="required", parallel_tool_calls=False)
        whole, chunks = bound.invoke(QUESTION), list(bound.stream(QUESTION))
        together: AIMessageChunk = sum(chunks[1:], chunks[0])
        assert whole.tool_calls
        assert [(call["name"], call["args"]) for call in together.tool_calls] == [
            (call["name"], call["args"]) for call in whole.tool_calls
        ]
        assert len(chunks) > 2
        agent = create_agent(one, [temperature], middleware=[the_tool_first])
        parts = [part for part, _ in agent.stream({"messages": [("user", QUESTION)]}, stream_mode="messages")]
        assert any(isinstance(part, ToolMessage) for part in parts)
        assert sum(isinstance(part, AIMessageChunk) for part in parts) > 2


# The async clients of langchain are kept in a cache, and their connections belong to one loop.
LOOP = asyncio.Runner()


def awaited(check: Callable[[Place], Coroutine[Any, Any, None]]) -> Callable[[Place], None]:
    """An async check."""
    return lambda place: LOOP.run(check(place))


async def asynchronous(place: Place) -> None:
    """Eight at once, a batch, and a stream, by both APIs; and an agent."""
    for responses in BOTH_APIS:
        one = model(place, use_responses_api=responses, max_completion_tokens=24)
        found = [*await asyncio.gather(*(one.ainvoke(QUESTION) for _ in range(8))), *await one.abatch([QUESTION] * 2)]
        streamed = "".join([chunk.text async for chunk in one.astream(QUESTION)])
        assert [each.text for each in found] == [streamed] * 10
    agent = create_agent(model(place), [temperature], middleware=[the_tool_first_async])
    messages = (await agent.ainvoke({"messages": [("user", QUESTION)]}))["messages"]
    assert_called(messages)


def tools(place: Place) -> None:
    """An agent's turn with a call, and one with its result, by both APIs; a named tool, whatever the question is."""
    for responses in BOTH_APIS:
        agent = create_agent(model(place, use_responses_api=responses), [temperature], middleware=[the_tool_first])
        assert_called(agent.invoke({"messages": [("user", QUESTION)]})["messages"])
        bound = model(place, use_responses_api=responses).bind_tools([temperature, Report], tool_choice="Report")
        [call] = bound.invoke("Tell me a story.").tool_calls
        assert call["name"] == "Report"
        assert isinstance(Report(**call["args"]), Report)


def assert_called(messages: list[Any]) -> None:
    """There are calls with arguments of the tool's types, each has its result, and a text comes last."""
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    results = [message for message in messages if isinstance(message, ToolMessage)]
    assert calls
    assert all(call["args"]["city"] in CITIES for call in calls)
    assert [result.tool_call_id for result in results] == [call["id"] for call in calls]
    assert [result.content for result in results] == [temperature.invoke(call["args"]) for call in calls]
    assert isinstance(messages[-1], AIMessage)
    assert messages[-1].text.strip()


def structured_output(place: Place) -> None:
    """By JSON schema, whole and streamed, by a call, and by JSON mode's looser promise of an object."""
    for responses in BOTH_APIS:
        one = model(place, use_responses_api=responses)
        for method in ("json_schema", "function_calling"):
            typed = one.with_structured_output(Report, method=method)
            whole = typed.invoke(FACT)
            assert isinstance(whole, Report), method
            assert list(typed.stream(FACT))[-1] == whole, method
    loose = model(place, max_completion_tokens=400).with_structured_output(method="json_mode", include_raw=True)
    found = loose.invoke("Tell me about Paris in JSON.")
    if found["raw"].response_metadata["finish_reason"] == "stop":
        assert isinstance(found["parsed"], dict)


def agents_with_a_type(place: Place) -> None:
    """An agent ends with a type, by a call and by JSON schema."""
    for strategy in (Report, ToolStrategy(Report), ProviderStrategy(Report)):
        agent = create_agent(model(place), response_format=strategy)
        assert isinstance(agent.invoke({"messages": [("user", FACT)]})["structured_response"], Report)


def embeddings(place: Place) -> None:
    """One vector for each text, and one for a question, also async."""
    # Else it sends tokens of a vocabulary of OpenAI, which it fetches. Its documentation has this for other servers.
    one = OpenAIEmbeddings(**access(place), check_embedding_ctx_length=False)
    first, second = one.embed_documents(["a", "b c"])
    assert len(first) == len(second) > 1
    again = LOOP.run(one.aembed_query("a"))
    assert max(abs(a - b) for a, b in zip(one.embed_query("a"), again, strict=True)) < 1e-5


def errors(place: Place) -> None:
    """Too long a prompt, a wrong field, an unknown model, a wrong key, and a key's limit, each as its own class."""
    long = raises(ContextOverflowError, lambda: model(place).invoke(LONG_PROMPT))
    assert long.code == "context_length_exceeded"
    for responses in BOTH_APIS:
        for expected, prompt, changes in (
            (ContextOverflowError, LONG_PROMPT, {}),
            (ModelInvalidRequestError, QUESTION, {"top_p": 2}),
            (ModelNotFoundError, QUESTION, {"model": "no-such-model"}),
            (ModelAuthenticationError, QUESTION, {"api_key": WRONG_KEY}),
        ):
            one = model(place, use_responses_api=responses, **changes)
            raises(expected, lambda one=one, prompt=prompt: one.invoke(prompt))
            raises(expected, lambda one=one, prompt=prompt: list(one.stream(prompt)))
    if place.limited_key:
        limited = model(place, api_key=place.limited_key)
        raises(ModelRateLimitError, lambda: [limited.invoke(QUESTION) for _ in range(2)])


def retries(place: Place) -> None:
    """503 is a `ModelAPIError`; with retries the answer comes, by both APIs."""
    for responses in BOTH_APIS:
        with asleep(place):
            raises(ModelAPIError, lambda: model(place).invoke(QUESTION))
            assert model(place, use_responses_api=responses, max_retries=8).invoke(QUESTION).text


def long_answer(place: Place, *, responses: bool = False, **options: Any) -> ChatOpenAI:
    """A model that does not stop by itself."""
    endless = {"extra_body": {"ignore_eos": True}}
    return model(place, use_responses_api=responses, max_completion_tokens=LONG_ANSWER, **endless | options)


def cancel(place: Place) -> None:
    """A stream that is closed, by both APIs, and a call that ran out of time."""
    for responses in BOTH_APIS:
        chunks = long_answer(place, responses=responses).stream(COUNT)
        next(chunks)
        assert_cancelled(place, chunks.close)
    raises(ModelTimeoutError, lambda: long_answer(place, timeout=1).invoke(COUNT))
    assert_idle(place)


async def cancelled_task(place: Place) -> None:
    """An async call, and an agent's run."""
    one = long_answer(place)
    agent = create_agent(one, [temperature])
    for begin in (lambda: one.ainvoke(COUNT), lambda: agent.ainvoke({"messages": [("user", COUNT)]})):
        task = asyncio.create_task(begin())
        await cancel_task(place, task)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=(stream, streamed_calls),
        asynchronous=awaited(asynchronous),
        tools=tools,
        structured_output=(structured_output, agents_with_a_type),
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=(cancel, awaited(cancelled_task)),
    )
