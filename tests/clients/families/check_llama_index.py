"""llama-index: `OpenAILike` by chat and by text completions, `OpenAILikeResponses`, an agent, and embeddings."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
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
    assert_running,
    cancel_task,
    raises,
    run,
)
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel

TEXT = "Once upon a time"


def access(place: Place) -> dict[str, Any]:
    """The options that every class takes: address and key of the server, and no retries."""
    return {"api_base": place.base_url, "api_key": place.key, "max_retries": 0}


def llm(place: Place, **options: Any) -> OpenAILike:
    """The model by chat completions, or by text completions."""
    size = {"context_window": 4096, "max_tokens": 64}
    kind = {"model": place.model, "is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(**access(place) | size | kind | {"temperature": 0} | options)


def responder(place: Place, **options: Any) -> OpenAILikeResponses:
    """The model by the Responses API."""
    size = {"context_window": 4096, "max_output_tokens": 64}
    kind = {"model": place.model, "is_function_calling_model": True}
    return OpenAILikeResponses(**access(place) | size | kind | {"temperature": 0} | options)


BOTH_APIS = (llm, responder)


def messages(text: str = QUESTION) -> list[ChatMessage]:
    """A conversation, which the library changes."""
    return [ChatMessage(role="user", content=text)]


class Question(BaseModel):
    """The arguments of the tool."""

    city: City


def temperature(city: City) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} degrees"


TOOL = FunctionTool.from_defaults(temperature, fn_schema=Question)


def chat(place: Place) -> None:
    """Chat completions, responses and text completions; usage."""
    found = llm(place).chat(messages())
    assert found.message.content
    counts = found.additional_kwargs
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    answer = responder(place).chat(messages())
    assert answer.message.content
    assert answer.additional_kwargs["usage"].output_tokens <= 64
    assert llm(place, is_chat_model=False).complete(TEXT).text


def stream(place: Place) -> None:
    """The text of the whole answer, by all three APIs."""
    for api in BOTH_APIS:
        parts = [part.delta or "" for part in api(place).stream_chat(messages())]
        assert "".join(parts) == api(place).chat(messages()).message.content
        assert len(parts) > 2
    text = llm(place, is_chat_model=False)
    *_, last = text.stream_complete(TEXT)
    assert last.text == text.complete(TEXT).text


async def asynchronous(place: Place) -> None:
    """Eight at once, and a stream, by all three APIs."""
    for api in BOTH_APIS:
        one = api(place)
        found = await asyncio.gather(*(one.achat(messages()) for _ in range(8)))
        streamed = "".join([part.delta or "" async for part in await one.astream_chat(messages())])
        assert [each.message.content for each in found] == [streamed] * 8
    text = llm(place, is_chat_model=False)
    parts = [part.delta async for part in await text.astream_complete(TEXT)]
    assert "".join(parts) == (await text.acomplete(TEXT)).text


def tools(place: Place) -> None:
    """A required call, its result, an answer; streamed, the call is the same; by both APIs."""
    for api in BOTH_APIS:
        one = api(place)
        found = one.chat_with_tools([TOOL], user_msg=QUESTION, tool_required=True)
        [call] = one.get_tool_calls_from_response(found)
        assert call.tool_kwargs["city"] in CITIES
        result = ChatMessage(role="tool", content="27", additional_kwargs={"tool_call_id": call.tool_id})
        after = [*messages(), found.message, result]
        assert one.chat_with_tools([TOOL], chat_history=after, tool_choice="none").message.content
        *_, last = one.stream_chat_with_tools([TOOL], user_msg=QUESTION, tool_required=True)
        [streamed] = one.get_tool_calls_from_response(last)
        assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)


async def agent(place: Place) -> None:
    """An agent, streaming or not, calls its tool, and ends with an answer; by both APIs."""
    for api in BOTH_APIS:
        for streaming in (True, False):
            one = FunctionAgent(
                tools=[TOOL], llm=api(place), streaming=streaming, initial_tool_choice="required"
            )  # fmt: skip
            handler = one.run(QUESTION, max_iterations=4, early_stopping_method="generate")
            events = [event async for event in handler.stream_events()]
            results = [event for event in events if isinstance(event, ToolCallResult)]
            assert results
            assert results[0].tool_output.content == temperature(**results[0].tool_kwargs)
            assert str(await handler).strip()


def structured_output(place: Place) -> None:
    """By a call of a function and by JSON schema, whole and streamed, and by responses."""
    prompt = PromptTemplate("It is {degrees} degrees in Paris.")
    # For streams it asks for no call by itself.
    for changes in ({"additional_kwargs": {"tool_choice": "required"}}, {"should_use_structured_outputs": True}):
        one = llm(place, **changes)
        whole = one.structured_predict(Report, prompt, degrees=21)
        assert isinstance(whole, Report)
        *_, last = one.stream_structured_predict(Report, prompt, degrees=21)
        assert last.model_dump() == whole.model_dump()
    bounds = {"temperature": 0, "max_output_tokens": 96}
    assert isinstance(responder(place).structured_predict(Report, prompt, llm_kwargs=bounds, degrees=21), Report)


def embeddings(place: Place) -> None:
    """One vector for each text, also async."""
    one = OpenAILikeEmbedding(model_name=place.model, **access(place))
    first, second = one.get_text_embedding_batch(["a", "b c"])
    assert len(first) == len(second) > 1
    again = asyncio.run(one.aget_text_embedding("a"))
    assert max(abs(a - b) for a, b in zip(first, again, strict=True)) < 1e-5


def errors(place: Place) -> None:
    """Too long a prompt, a wrong field, an unknown model, a wrong key, and a key's limit, as classes of `openai`."""
    for api in BOTH_APIS:
        for expected, prompt, changes in (
            (openai.BadRequestError, LONG_PROMPT, {}),
            (openai.BadRequestError, QUESTION, {"additional_kwargs": {"top_p": 2}}),
            (openai.NotFoundError, QUESTION, {"model": "no-such-model"}),
            (openai.AuthenticationError, QUESTION, {"api_key": WRONG_KEY}),
        ):
            one = api(place, **changes)
            found = raises(expected, lambda one=one, prompt=prompt: one.chat(messages(prompt)))
            assert (found.code == "context_length_exceeded") == (prompt == LONG_PROMPT)
            raises(expected, lambda one=one, prompt=prompt: list(one.stream_chat(messages(prompt))))
    if place.limited_key:
        limited = llm(place, api_key=place.limited_key)
        raises(openai.RateLimitError, lambda: [limited.chat(messages()) for _ in range(2)])


def retries(place: Place) -> None:
    """503 is an `InternalServerError`; with retries the answer comes, by both APIs."""
    for api in BOTH_APIS:
        with asleep(place):
            raises(openai.InternalServerError, lambda api=api: api(place).chat(messages()))
            assert api(place, max_retries=8).chat(messages()).message.content


def long_answer(place: Place, api: Any = llm, **options: Any) -> Any:
    """A model that does not stop by itself."""
    endless = {"additional_kwargs": {"extra_body": {"ignore_eos": True}}} | options
    if api is responder:
        return responder(place, max_output_tokens=LONG_ANSWER, **endless)
    return llm(place, max_tokens=LONG_ANSWER, **endless)


def cancel(place: Place) -> None:
    """A stream that is closed, by both APIs, and a call that ran out of time."""
    for api in BOTH_APIS:
        # It leaves the connection of a closed stream to the garbage collector.
        parts = long_answer(place, api).stream_chat(messages(COUNT))
        next(parts)
        assert_cancelled(place, lambda parts=parts: (parts.close(), gc.collect()))
    raises(openai.APITimeoutError, lambda: long_answer(place, timeout=1).chat(messages(COUNT)))
    assert_idle(place)


async def cancelled_task(place: Place) -> None:
    """An async call, and an agent's run."""
    task = asyncio.create_task(long_answer(place).achat(messages(COUNT)))
    await cancel_task(place, task)
    handler = FunctionAgent(tools=[TOOL], llm=long_answer(place)).run(COUNT)
    await asyncio.to_thread(assert_running, place)
    await handler.cancel_run()
    await asyncio.to_thread(assert_idle, place)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=lambda place: asyncio.run(asynchronous(place)),
        tools=(tools, lambda place: asyncio.run(agent(place))),
        structured_output=structured_output,
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=(cancel, lambda place: asyncio.run(cancelled_task(place))),
    )
