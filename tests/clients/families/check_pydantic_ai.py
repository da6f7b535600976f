"""pydantic-ai: agents by chat completions and by the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

from checks import CITIES, DEGREES, QUESTION, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

City = Literal[CITIES]
SETTINGS = ModelSettings(temperature=0, max_tokens=96, parallel_tool_calls=False)


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)


def models(base_url: str, model: str) -> Iterator[Model]:
    """The model by both APIs."""
    provider = OpenAIProvider(base_url=f"{base_url}/v1", api_key="none")
    yield OpenAIChatModel(model, provider=provider)
    yield OpenAIResponsesModel(model, provider=provider)


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


def agent_calls_a_tool(base_url: str, model: str) -> None:
    """One call with arguments of the tool's types, its result, an answer."""
    for one in models(base_url, model):
        agent = Agent(one, tools=[temperature], model_settings=lambda context: SETTINGS | first_turn(context))
        result = agent.run_sync(QUESTION)
        [call], [returned] = parts(result, ToolCallPart), parts(result, ToolReturnPart)
        arguments = call.args_as_dict()
        assert arguments["city"] in CITIES
        assert returned.content == temperature(**arguments)
        assert returned.tool_call_id == call.tool_call_id
        assert result.output.strip()


def agent_streams(base_url: str, model: str) -> None:
    """The streamed run has the answer of the whole one."""
    for one in models(base_url, model):
        agent = Agent(one, tools=[temperature], model_settings=lambda context: SETTINGS | first_turn(context))
        whole = agent.run_sync(QUESTION)

        async def streamed(agent: Agent = agent) -> tuple[list[str], list[Any]]:
            async with agent.run_stream(QUESTION) as result:
                return [text async for text in result.stream_text(delta=True)], parts(result, ToolCallPart)

        texts, calls = asyncio.run(streamed())
        assert "".join(texts) == whole.output
        assert [call.args_as_dict() for call in calls] == [call.args_as_dict() for call in parts(whole, ToolCallPart)]


def answers_have_a_type(base_url: str, model: str) -> None:
    """By a call of an output tool and by a JSON schema."""
    for one in models(base_url, model):
        for output in (ToolOutput(Report), NativeOutput(Report)):
            agent = Agent(one, output_type=output, model_settings=SETTINGS)
            assert isinstance(agent.run_sync("It is 21 degrees in Paris.").output, Report)


if __name__ == "__main__":
    run([agent_calls_a_tool, agent_streams, answers_have_a_type])
