"""openai-agents: its loop by chat completions and by the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    Tool,
    function_tool,
    set_tracing_disabled,
)
from checks import CITIES, DEGREES, QUESTION, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

City = Literal[CITIES]
FIRST_TURN = ModelSettings(tool_choice="required", temperature=0, max_tokens=1000, parallel_tool_calls=False)


class Report(BaseModel):
    """The final answer of an agent."""

    city: City
    degrees: int = Field(ge=-50, le=50)


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


def each(check: Callable[[Model], Any]) -> Callable[[str, str], None]:
    """A check of both APIs."""

    async def of_both(base_url: str, model: str) -> None:
        async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none") as client:
            for api in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
                print(" ", api.__name__, flush=True)
                await check(api(model=model, openai_client=client))

    def run_of_both(base_url: str, model: str) -> None:
        asyncio.run(of_both(base_url, model))

    run_of_both.__name__ = check.__name__
    return run_of_both


def agent(model: Model, thermometer: Thermometer, **options: Any) -> Agent:
    """An agent with the tool, that has to be called first."""
    return Agent(
        "weather", instructions="Answer briefly.", tools=[thermometer.tool()], model=model, model_settings=FIRST_TURN,
        **options,
    )  # fmt: skip


def kinds(result: Any) -> list[str]:
    """The types of the items of a run."""
    return [item.type for item in result.new_items]


async def a_tool_runs_and_its_result_goes_back(model: Model) -> None:
    """One call with arguments of the tool's types, its result, an answer."""
    thermometer = Thermometer()
    result = await Runner.run(agent(model, thermometer), QUESTION)
    [(city, unit)] = thermometer.calls
    assert city in CITIES
    assert unit in {"celsius", "kelvin"}
    assert kinds(result) == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds(result)
    assert result.new_items[1].output == f"{DEGREES[city]} {unit}"
    assert result.final_output.strip()
    longer = await Runner.run(agent(model, Thermometer(" and rising" * 20)), QUESTION)
    sizes = [run.raw_responses[1].usage.input_tokens for run in (result, longer)]
    assert sizes[1] >= sizes[0] + 40, f"the second prompt has the result of the call: {sizes}"


async def a_streamed_run_equals_a_whole_one(model: Model) -> None:
    """The same calls and the same answer; arguments and text arrive in parts."""
    whole, streamed = Thermometer(), Thermometer()
    expected = await Runner.run(agent(model, whole), QUESTION)
    result = Runner.run_streamed(agent(model, streamed), QUESTION)
    raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    arguments = [event.delta for event in raw if event.type == "response.function_call_arguments.delta"]
    texts = [event.delta for event in raw if event.type == "response.output_text.delta"]
    assert streamed.calls == whole.calls
    assert kinds(result) == kinds(expected)
    assert result.final_output == expected.final_output == "".join(texts)
    assert "".join(arguments) == expected.new_items[0].raw_item.arguments
    assert len(texts) > 1


async def an_answer_has_the_type_that_was_asked_for(model: Model) -> None:
    """A JSON schema for the answer, with and without a tool before it."""
    settings = ModelSettings(temperature=0, max_tokens=96)
    plain = Agent("report", instructions="Answer in JSON.", model=model, model_settings=settings, output_type=Report)
    result = await Runner.run(plain, "It is 21 degrees in Paris.")
    assert isinstance(result.final_output, Report)
    thermometer = Thermometer()
    result = await Runner.run(agent(model, thermometer, output_type=Report), QUESTION)
    assert len(thermometer.calls) == 1
    assert isinstance(result.final_output, Report)


async def several_calls_are_answered_in_one_turn(model: Model) -> None:
    """History with two calls of one turn, and their results in another order."""
    thermometer = Thermometer()
    settings = ModelSettings(temperature=0, max_tokens=1000)
    calls = [("call_1", "Rome", "27 celsius"), ("call_2", "Oslo", "9 celsius")]
    history: list[Any] = [{"role": "user", "content": "Compare Rome and Oslo."}]
    for identity, city, _ in calls:
        arguments = f'{{"city": "{city}", "unit": "celsius"}}'
        history.append({"type": "function_call", "call_id": identity, "name": "temperature", "arguments": arguments})
    for identity, _, output in reversed(calls):
        history.append({"type": "function_call_output", "call_id": identity, "output": output})
    asked = Agent("weather", tools=[thermometer.tool()], model=model, model_settings=settings.resolve(
        ModelSettings(tool_choice="none")
    ))  # fmt: skip
    result = await Runner.run(asked, history)
    assert result.final_output.strip()
    assert not thermometer.calls


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    run([
        each(a_tool_runs_and_its_result_goes_back),
        each(a_streamed_run_equals_a_whole_one),
        each(an_answer_has_the_type_that_was_asked_for),
        each(several_calls_are_answered_in_one_turn),
    ])  # fmt: skip
