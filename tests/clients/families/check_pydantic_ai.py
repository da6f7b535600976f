"""pydantic-ai: agents by chat completions and by the Responses API, direct requests, and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
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
    assert_idle,
    assert_running,
    cancel_task,
    raises,
    run,
)
from pydantic_ai import Agent, Embedder, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request_sync
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelUnavailableError,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = ModelSettings(temperature=0, max_tokens=96, parallel_tool_calls=False, max_retries=0)


def provider_of(place: Place, key: str = "") -> OpenAIProvider:
    """The place, for models and for embeddings."""
    return OpenAIProvider(base_url=place.base_url, api_key=key or place.key)


def models(place: Place, key: str = "", name: str = "") -> Iterator[Model]:
    """The model by both APIs."""
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        yield kind(name or place.model, provider=provider_of(place, key))


def with_each(place: Place, check: Callable[[Model], Awaitable[None]]) -> None:
    """Run an async check with the model by both APIs."""

    async def of_both() -> None:
        for one in models(place):
            await check(one)

    asyncio.run(of_both())


def temperature(city: City, unit: Literal["celsius", "kelvin"]) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} {unit}"


def parts(result: Any, kind: type) -> list[Any]:
    """The parts of one type in the messages of a run."""
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, kind)]


def first_turn(context: Any) -> ModelSettings:
    """The first turn has to call the tool, later ones must not."""
    answered = any(isinstance(message, ModelResponse) for message in context.messages)
    return ModelSettings(tool_choice="none" if answered else ["temperature"])


def agent_with_tool(one: Model) -> Agent:
    """An agent that calls the tool once."""
    return Agent(one, tools=[temperature], model_settings=lambda context: SETTINGS | first_turn(context))


async def streamed(agent: Agent) -> tuple[list[str], Any]:
    """The parts of an answer, and the result that they belong to."""
    async with agent.run_stream(QUESTION) as result:
        return [text async for text in result.stream_text(delta=True, debounce_by=None)], result


def chat(place: Place) -> None:
    """Two turns of an agent, with usage, and a direct request, by both APIs."""
    for one in models(place):
        agent = Agent(one, model_settings=SETTINGS, instructions="Answer briefly.")
        first = agent.run_sync(QUESTION)
        second = agent.run_sync("And in Oslo?", message_history=first.all_messages())
        assert first.output
        assert second.output
        assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
        direct = model_request_sync(one, [ModelRequest.user_text_prompt(QUESTION)], model_settings=SETTINGS)
        assert direct.text
        assert direct.usage.output_tokens


def stream(place: Place) -> None:
    """The text of the whole answer and its usage, by both APIs."""

    async def equals_whole(one: Model) -> None:
        agent = Agent(one, model_settings=SETTINGS)
        whole = await agent.run(QUESTION)
        texts, result = await streamed(agent)
        assert "".join(texts) == whole.output
        assert len(texts) > 2
        assert result.usage.output_tokens == whole.usage.output_tokens

    with_each(place, equals_whole)


def asynchronous(place: Place) -> None:
    """Eight runs at once, and a streamed one, by both APIs."""

    async def all_at_once(one: Model) -> None:
        agent = Agent(one, model_settings=SETTINGS)
        found = await asyncio.gather(*(agent.run(QUESTION) for _ in range(8)))
        texts, _ = await streamed(agent)
        assert [each.output for each in found] == ["".join(texts)] * 8

    with_each(place, all_at_once)


def agent_calls_a_tool(place: Place) -> None:
    """One call with arguments of the tool's types, its result, an answer."""
    for one in models(place):
        result = agent_with_tool(one).run_sync(QUESTION)
        [call], [returned] = parts(result, ToolCallPart), parts(result, ToolReturnPart)
        arguments = call.args_as_dict()
        assert arguments["city"] in CITIES
        assert returned.content == temperature(**arguments)
        assert returned.tool_call_id == call.tool_call_id
        assert result.output.strip()


def agent_streams(place: Place) -> None:
    """The streamed run has the calls and the answer of the whole one."""

    async def equals_whole(one: Model) -> None:
        agent = agent_with_tool(one)
        whole = await agent.run(QUESTION)
        texts, result = await streamed(agent)
        assert "".join(texts) == whole.output
        calls = [call.args_as_dict() for call in parts(result, ToolCallPart)]
        assert calls == [call.args_as_dict() for call in parts(whole, ToolCallPart)]

    with_each(place, equals_whole)


def structured_output(place: Place) -> None:
    """A type of pydantic by a call of an output tool and by a JSON schema, whole and streamed."""

    async def has_the_type(one: Model) -> None:
        for output in (ToolOutput(Report), NativeOutput(Report)):
            agent = Agent(one, output_type=output, model_settings=SETTINGS)
            whole = await agent.run("It is 21 degrees in Paris.")
            assert isinstance(whole.output, Report)
            async with agent.run_stream("It is 21 degrees in Paris.") as result:
                assert await result.get_output() == whole.output

    with_each(place, has_the_type)


def embeddings(place: Place) -> None:
    """One vector for each text, and the same for a query as for a document."""
    embedder = Embedder(OpenAIEmbeddingModel(place.model, provider=provider_of(place)))

    async def both() -> None:
        found = await embedder.embed_documents(["a", "b c"])
        assert len(found.embeddings) == 2
        assert len(found["a"]) == len(found["b c"]) > 1
        query = await embedder.embed_query("b c")
        assert max(abs(a - b) for a, b in zip(query.embeddings[0], found["b c"], strict=True)) < 1e-5

    asyncio.run(both())


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and a key's limit, each as its own class, by both APIs."""

    def asked(one: Model, prompt: str = QUESTION) -> Any:
        return Agent(one, model_settings=SETTINGS).run_sync(prompt)

    for one in models(place):
        long = raises(ModelContextWindowExceededError, lambda one=one: asked(one, LONG_PROMPT))
        assert long.status_code == 400
    for one in models(place, name="no-such-model"):
        raises(ModelNotFoundError, lambda one=one: asked(one))
    for one in models(place, key=WRONG_KEY):
        raises(ModelAuthenticationError, lambda one=one: asked(one))
    if place.limited_key:
        for one in models(place, key=place.limited_key):
            refused = raises(ModelRateLimitError, lambda one=one: [asked(one) for _ in range(2)])
            assert refused.retry_after >= 1


def retries(place: Place) -> None:
    """503 is a `ModelUnavailableError`; with retries the answer comes, by both APIs."""
    for one in models(place):
        agent = Agent(one, model_settings=SETTINGS)
        with asleep(place):
            raises(ModelUnavailableError, lambda agent=agent: agent.run_sync(QUESTION))
            assert agent.run_sync(QUESTION, model_settings=ModelSettings(max_retries=8)).output


def cancel(place: Place) -> None:
    """A stream that is cancelled, one that is left, and a run that is cancelled, by both APIs."""

    async def ended(one: Model) -> None:
        endless = ModelSettings(max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True})
        agent = Agent(one, model_settings=SETTINGS | endless)
        async with agent.run_stream(COUNT) as result:
            async for _ in result.stream_text(delta=True):
                await asyncio.to_thread(assert_running, place)
                await result.cancel()
                break
            await asyncio.to_thread(assert_idle, place)
        async with agent.run_stream(COUNT) as result:
            async for _ in result.stream_text(delta=True):
                await asyncio.to_thread(assert_running, place)
                break
        await asyncio.to_thread(assert_idle, place)
        task = asyncio.create_task(agent.run(COUNT))
        await cancel_task(place, task)

    with_each(place, ended)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=asynchronous,
        tools=(agent_calls_a_tool, agent_streams),
        structured_output=structured_output,
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=cancel,
    )
