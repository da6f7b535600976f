"""openai-agents: its loop by chat completions and by the Responses API, whole, streamed and sync."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Literal

import openai
from agents import (
    Agent,
    Model,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    Tool,
    function_tool,
    retry_policies,
    set_tracing_disabled,
)
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
from openai import AsyncOpenAI

APIS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
SHORT = ModelSettings(temperature=0, max_tokens=96)
FIRST_TURN = ModelSettings(tool_choice="required", temperature=0, max_tokens=1000, parallel_tool_calls=False)


class Thermometer:
    """A tool that keeps its calls, and that the agent offers to the model until it is called."""

    def __init__(self, remark: str = "") -> None:
        self.calls: list[tuple[str, str]] = []
        self._remark = remark

    def tool(self) -> Tool:
        """The tool for an agent."""

        def offered(context: RunContextWrapper[Any], agent: Any) -> bool:
            return not self.calls

        @function_tool(is_enabled=offered)
        def temperature(city: City, unit: Literal["celsius", "kelvin"]) -> str:
            """The temperature in a city."""
            self.calls.append((city, unit))
            return f"{DEGREES[city]} {unit}{self._remark}"

        return temperature


def client(place: Place, **options: Any) -> AsyncOpenAI:
    """The client of a place, without retries by default."""
    return AsyncOpenAI(**{"base_url": place.base_url, "api_key": place.key, "max_retries": 0} | options)


def model_of(place: Place, api: Any, name: str = "", **options: Any) -> Model:
    """The model by one API."""
    return api(model=name or place.model, openai_client=client(place, **options))


def each(check: Callable[[Place, Model], Awaitable[None]]) -> Callable[[Place], None]:
    """A check of both APIs."""

    @wraps(check)
    def run_of_both(place: Place) -> None:
        async def of_both() -> None:
            async with client(place) as one:
                for api in APIS:
                    await check(place, api(model=place.model, openai_client=one))

        asyncio.run(of_both())

    return run_of_both


def plain(model: Model, settings: ModelSettings = SHORT, **options: Any) -> Agent:
    """An agent without tools."""
    return Agent("weather", instructions="Answer briefly.", model=model, model_settings=settings, **options)


def with_tool(model: Model, thermometer: Thermometer, **options: Any) -> Agent:
    """An agent with the tool, that has to be called first."""
    return plain(model, FIRST_TURN, tools=[thermometer.tool()], **options)


def kinds(result: Any) -> list[str]:
    """The types of the items of a run."""
    return [item.type for item in result.new_items]


async def raw_events(result: Any) -> list[Any]:
    """The events of a streamed run as the API sent them."""
    return [event.data async for event in result.stream_events() if event.type == "raw_response_event"]


def texts_of(events: list[Any]) -> list[str]:
    """The parts of the answer."""
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def chat(place: Place) -> None:
    """Two turns of a sync run, with usage, by both APIs."""
    for api in APIS:
        agent = plain(model_of(place, api))
        first = Runner.run_sync(agent, QUESTION)
        after = [*first.to_input_list(), {"role": "user", "content": "And in Oslo?"}]
        second = Runner.run_sync(agent, after)
        assert first.final_output
        assert second.final_output
        before = first.context_wrapper.usage
        assert second.context_wrapper.usage.input_tokens > before.input_tokens + before.output_tokens


@each
async def stream(place: Place, model: Model) -> None:
    """The text of the whole answer, by both APIs."""
    whole = await Runner.run(plain(model), QUESTION)
    result = Runner.run_streamed(plain(model), QUESTION)
    texts = texts_of(await raw_events(result))
    assert "".join(texts) == result.final_output == whole.final_output
    assert len(texts) > 2


@each
async def asynchronous(place: Place, model: Model) -> None:
    """Eight runs at once, by both APIs."""
    found = await asyncio.gather(*(Runner.run(plain(model), QUESTION) for _ in range(8)))
    assert [result.final_output for result in found] == [found[0].final_output] * 8


@each
async def a_tool_runs_and_its_result_goes_back(place: Place, model: Model) -> None:
    """One call with arguments of the tool's types, its result, an answer."""
    thermometer = Thermometer()
    result = await Runner.run(with_tool(model, thermometer), QUESTION)
    [(city, unit)] = thermometer.calls
    assert city in CITIES
    assert unit in {"celsius", "kelvin"}
    assert kinds(result) == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds(result)
    assert result.new_items[1].output == f"{DEGREES[city]} {unit}"
    assert result.final_output.strip()
    longer = await Runner.run(with_tool(model, Thermometer(" and rising" * 20)), QUESTION)
    sizes = [run.raw_responses[1].usage.input_tokens for run in (result, longer)]
    assert sizes[1] >= sizes[0] + 40, f"the second prompt has the result of the call: {sizes}"


@each
async def a_streamed_run_equals_a_whole_one(place: Place, model: Model) -> None:
    """The same calls and the same answer; arguments and text arrive in parts."""
    whole, streamed = Thermometer(), Thermometer()
    expected = await Runner.run(with_tool(model, whole), QUESTION)
    result = Runner.run_streamed(with_tool(model, streamed), QUESTION)
    raw = await raw_events(result)
    arguments = [event.delta for event in raw if event.type == "response.function_call_arguments.delta"]
    assert streamed.calls == whole.calls
    assert kinds(result) == kinds(expected)
    assert result.final_output == expected.final_output == "".join(texts_of(raw))
    assert "".join(arguments) == expected.new_items[0].raw_item.arguments
    assert len(texts_of(raw)) > 1


@each
async def several_calls_are_answered_in_one_turn(place: Place, model: Model) -> None:
    """History with two calls of one turn, and their results in another order."""
    thermometer = Thermometer()
    calls = [("call_1", "Rome", "27 celsius"), ("call_2", "Oslo", "9 celsius")]
    history: list[Any] = [{"role": "user", "content": "Compare Rome and Oslo."}]
    for identity, city, _ in calls:
        arguments = f'{{"city": "{city}", "unit": "celsius"}}'
        history.append({"type": "function_call", "call_id": identity, "name": "temperature", "arguments": arguments})
    for identity, _, output in reversed(calls):
        history.append({"type": "function_call_output", "call_id": identity, "output": output})
    settings = ModelSettings(temperature=0, max_tokens=1000, tool_choice="none")
    result = await Runner.run(plain(model, settings, tools=[thermometer.tool()]), history)
    assert result.final_output.strip()
    assert not thermometer.calls


@each
async def structured_output(place: Place, model: Model) -> None:
    """A JSON schema for the answer, with and without a tool before it, by both APIs."""
    result = await Runner.run(plain(model, output_type=Report), "It is 21 degrees in Paris.")
    assert isinstance(result.final_output, Report)
    thermometer = Thermometer()
    result = await Runner.run(with_tool(model, thermometer, output_type=Report), QUESTION)
    assert len(thermometer.calls) == 1
    assert isinstance(result.final_output, Report)


def answer(model: Model, prompt: str = QUESTION, settings: ModelSettings = SHORT) -> str:
    """The answer of a sync run."""
    return str(Runner.run_sync(plain(model, settings), prompt).final_output)


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and a key's limit, each as openai's class, by both APIs."""
    for api in APIS:
        long = raises(openai.BadRequestError, lambda api=api: answer(model_of(place, api), LONG_PROMPT))
        assert long.code == "context_length_exceeded"
        raises(openai.NotFoundError, lambda api=api: answer(model_of(place, api, "no-such-model")))
        raises(openai.AuthenticationError, lambda api=api: answer(model_of(place, api, api_key=WRONG_KEY)))
        if place.limited_key:
            raises(
                openai.RateLimitError,
                lambda api=api: [answer(model_of(place, api, api_key=place.limited_key)) for _ in range(2)],
            )


def retries(place: Place) -> None:
    """503 is openai's error; with retries of the runner, and of openai's client, the answer comes, by both APIs."""
    policy = retry_policies.any(retry_policies.provider_suggested(), retry_policies.http_status([503]))
    by_runner = SHORT.resolve(ModelSettings(retry=ModelRetrySettings(max_retries=8, policy=policy)))
    for api in APIS:
        once = model_of(place, api)
        often = model_of(place, api, max_retries=8)
        for model, settings in ((once, by_runner), (often, SHORT)):
            with asleep(place):
                raises(openai.InternalServerError, lambda once=once: answer(once))
                assert answer(model, settings=settings)


@each
async def cancel(place: Place, model: Model) -> None:
    """A streamed run that is cancelled, and a run whose task is cancelled, by both APIs."""
    long = ModelSettings(temperature=0, max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True})
    result = Runner.run_streamed(plain(model, long), COUNT)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            await asyncio.to_thread(assert_running, place)
            result.cancel()
    await asyncio.to_thread(assert_idle, place)
    task = asyncio.create_task(Runner.run(plain(model, long), COUNT))
    await cancel_task(place, task)


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    run(
        chat=chat,
        stream=stream,
        asynchronous=asynchronous,
        tools=(
            a_tool_runs_and_its_result_goes_back,
            a_streamed_run_equals_a_whole_one,
            several_calls_are_answered_in_one_turn,
        ),
        structured_output=structured_output,
        embeddings="it has no embeddings",
        errors=errors,
        retries=retries,
        cancel=cancel,
    )
