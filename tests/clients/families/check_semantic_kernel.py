"""semantic-kernel: chat and text completions, kernel functions, agents by both APIs, and embeddings. All is async."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from functools import reduce, wraps
from typing import Any

import openai
from answers import Report
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
    cancel_task,
    raises,
    run,
)
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextCompletion,
    OpenAITextEmbedding,
    OpenAITextPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory, FunctionCallContent, FunctionResultContent
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments, kernel_function

City = StrEnum("City", {city: city for city in CITIES})
STORY = "Once upon a time"


class Weather:
    """The same as a class without pydantic."""

    city: City
    degrees: int


class Thermometer:
    """A plugin that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @kernel_function(description="The temperature in a city.")
    def temperature(self, city: City) -> str:
        """The temperature in a city."""
        self.calls.append(str(city))
        return f"{DEGREES[str(city)]} degrees"


def client(place: Place, **options: Any) -> AsyncOpenAI:
    """The client of a place, without retries by default."""
    return AsyncOpenAI(**{"base_url": place.base_url, "api_key": place.key, "max_retries": 0} | options)


def service(place: Place, model: str = "", **options: Any) -> OpenAIChatCompletion:
    """Chat completions."""
    return OpenAIChatCompletion(ai_model_id=model or place.model, async_client=client(place, **options))


def settings(**options: Any) -> OpenAIChatPromptExecutionSettings:
    """The settings of a chat completion."""
    return OpenAIChatPromptExecutionSettings(**{"temperature": 0, "max_tokens": 96} | options)


def asked(text: str = QUESTION) -> ChatHistory:
    """The messages."""
    history = ChatHistory()
    history.add_user_message(text)
    return history


def awaited(check: Callable[[Place], Awaitable[None]]) -> Callable[[Place], None]:
    """A check that is async."""

    @wraps(check)
    def run_it(place: Place) -> None:
        asyncio.run(check(place))

    return run_it


async def texts_of(parts: AsyncIterator[Any]) -> list[str]:
    """The parts of a streamed answer."""
    return [text async for part in parts if (text := str(part))]


@awaited
async def chat(place: Place) -> None:
    """Two turns of a chat with usage, a text, a prompt of the kernel, and agents by both APIs."""
    one, history = service(place), asked()
    first = await one.get_chat_message_content(history, settings())
    history.add_message(first)
    history.add_user_message("And in Oslo?")
    second = await one.get_chat_message_content(history, settings())
    assert str(first)
    assert str(second)
    assert second.metadata["usage"].prompt_tokens > first.metadata["usage"].prompt_tokens
    text = OpenAITextCompletion(ai_model_id=place.model, async_client=client(place))
    assert str(await text.get_text_content(STORY, OpenAITextPromptExecutionSettings(temperature=0, max_tokens=8)))
    kernel = Kernel()
    kernel.add_service(one)
    arguments = KernelArguments(settings=settings(), question=QUESTION)
    assert str(await kernel.invoke_prompt("{{$question}}", arguments=arguments)) == str(first)
    agent = ChatCompletionAgent(service=one, name="weather", arguments=KernelArguments(settings=settings()))
    assert str(await agent.get_response(QUESTION)) == str(first)
    for store in (True, False):
        by_responses = OpenAIResponsesAgent(
            ai_model_id=place.model, client=client(place), name="weather", temperature=0, store_enabled=store
        )
        reply = await by_responses.get_response(QUESTION)
        assert str(reply)
        assert str(await by_responses.get_response("And in Oslo?", thread=reply.thread))


@awaited
async def stream(place: Place) -> None:
    """The text of the whole answer and its usage: chat, text, and agents by both APIs."""
    one = service(place)
    whole = await one.get_chat_message_content(asked(), settings())
    parts = [part async for part in one.get_streaming_chat_message_content(asked(), settings())]
    texts = [text for part in parts if (text := str(part))]
    assert "".join(texts) == str(whole)
    assert len(texts) > 2
    assert parts[-1].metadata["usage"] == whole.metadata["usage"]
    text = OpenAITextCompletion(ai_model_id=place.model, async_client=client(place))
    given = OpenAITextPromptExecutionSettings(temperature=0, max_tokens=8)
    streamed = await texts_of(text.get_streaming_text_content(STORY, given))
    assert "".join(streamed) == str(await text.get_text_content(STORY, given))
    agent = ChatCompletionAgent(service=one, name="weather", arguments=KernelArguments(settings=settings()))
    assert "".join(await texts_of(agent.invoke_stream(QUESTION))) == str(whole)
    by_responses = OpenAIResponsesAgent(ai_model_id=place.model, client=client(place), name="weather", temperature=0)
    streamed = await texts_of(by_responses.invoke_stream(QUESTION))
    assert "".join(streamed) == str(await by_responses.get_response(QUESTION))
    assert len(streamed) > 2


@awaited
async def asynchronous(place: Place) -> None:
    """Eight at once."""
    one = service(place)
    found = await asyncio.gather(*(one.get_chat_message_content(asked(), settings()) for _ in range(8)))
    streamed = "".join(await texts_of(one.get_streaming_chat_message_content(asked(), settings())))
    assert [str(each) for each in found] == [streamed] * 8


@awaited
async def tools(place: Place) -> None:
    """A required call, its result, an answer, whole and streamed; an agent; a call that is not made by itself."""
    one, kernel, thermometer = service(place), Kernel(), Thermometer()
    kernel.add_plugin(thermometer, "weather")
    forced = settings(function_choice_behavior=FunctionChoiceBehavior.Required(), parallel_tool_calls=False)
    history = asked()
    assert str(await one.get_chat_message_content(history, forced, kernel=kernel))
    [city] = thermometer.calls
    assert city in CITIES
    [result] = [item for message in history for item in message.items if isinstance(item, FunctionResultContent)]
    assert result.result == f"{DEGREES[city]} degrees"
    history = asked()
    async for _ in one.get_streaming_chat_message_content(history, forced, kernel=kernel):
        pass
    assert thermometer.calls == [city, city]
    agent = ChatCompletionAgent(
        service=one, kernel=kernel, name="weather", arguments=KernelArguments(settings=forced),
        function_choice_behavior=FunctionChoiceBehavior.Required(),
    )  # fmt: skip
    assert str(await agent.get_response(QUESTION))
    assert thermometer.calls == [city] * 3
    by_hand = settings(
        function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=False), parallel_tool_calls=False
    )
    parts = [part async for part in one.get_streaming_chat_message_content(asked(), by_hand, kernel=kernel)]
    [call] = [item for item in reduce(lambda a, b: a + b, parts).items if isinstance(item, FunctionCallContent)]
    assert json.loads(call.arguments) == {"city": city}
    assert len(parts) > 2


@awaited
async def structured_output(place: Place) -> None:
    """A type of pydantic by chat completions and by responses, a plain class, and JSON mode."""
    one = service(place)
    found = await one.get_chat_message_content(asked(), settings(response_format=Report))
    assert Report.model_validate_json(str(found))
    plain = json.loads(str(await one.get_chat_message_content(asked(), settings(response_format=Weather))))
    assert plain["city"] in CITIES
    agent = OpenAIResponsesAgent(
        ai_model_id=place.model, client=client(place), name="weather", temperature=0,
        text=OpenAIResponsesAgent.configure_response_format(Report),
    )  # fmt: skip
    assert Report.model_validate_json(str(await agent.get_response(QUESTION)))
    loose = await one.get_chat_message_content(
        asked(), settings(response_format={"type": "json_object"}, max_tokens=400)
    )
    if loose.finish_reason == "stop":
        assert isinstance(json.loads(str(loose)), dict)


@awaited
async def embeddings(place: Place) -> None:
    """One vector for each text."""
    one = OpenAITextEmbedding(ai_model_id=place.model, async_client=client(place))
    found = await one.generate_embeddings(["a", "b c"])
    assert found.shape[0] == 2
    assert found.shape[1] > 1


def answer(place: Place, text: str = QUESTION, **options: Any) -> str:
    """The answer by chat completions, outside an event loop."""
    return str(asyncio.run(service(place, **options).get_chat_message_content(asked(text), settings())))


def refused(kind: type[Exception], ask: Callable[[], Any]) -> Any:
    """The cause of a `ServiceResponseException`, which has to be of a kind."""
    cause = raises(ServiceResponseException, ask).__cause__
    assert isinstance(cause, kind), repr(cause)
    return cause


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and a key's limit: each is the cause as openai's class."""
    assert refused(openai.BadRequestError, lambda: answer(place, LONG_PROMPT)).code == "context_length_exceeded"
    refused(openai.NotFoundError, lambda: answer(place, model="no-such-model"))
    refused(openai.AuthenticationError, lambda: answer(place, api_key=WRONG_KEY))
    if place.limited_key:
        refused(openai.RateLimitError, lambda: [answer(place, api_key=place.limited_key) for _ in range(2)])


def retries(place: Place) -> None:
    """503 is a `ServiceResponseException`; with the retries of openai's client the answer comes."""
    with asleep(place):
        refused(openai.InternalServerError, lambda: answer(place))
        assert answer(place, max_retries=8)


@awaited
async def cancel(place: Place) -> None:
    """A stream and a call that are cancelled."""
    one, long = service(place), settings(max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True})
    begun = asyncio.Event()

    async def streamed() -> None:
        async for _ in one.get_streaming_chat_message_content(asked(COUNT), long):
            begun.set()

    for call in (streamed(), one.get_chat_message_content(asked(COUNT), long)):
        task = asyncio.create_task(call)
        await begun.wait()
        await cancel_task(place, task)


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
