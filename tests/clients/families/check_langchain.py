"""langchain: `create_agent` (LangGraph's loop) and `ChatOpenAI` by chat completions and by the Responses API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from checks import CITIES, DEGREES, QUESTION, run
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, wrap_model_call
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

City = Literal[CITIES]


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)


@tool
def temperature(city: City, unit: Literal["celsius", "kelvin"]) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} {unit}"


@wrap_model_call
def the_tool_first(request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
    """The first turn has to call a tool, later ones must not."""
    called = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if called else "required"))


def chat(base_url: str, model: str, **options: Any) -> ChatOpenAI:
    """The model."""
    return ChatOpenAI(
        model=model, base_url=f"{base_url}/v1", api_key="none", temperature=0, max_completion_tokens=96, **options
    )


def agent_calls_a_tool(base_url: str, model: str) -> None:
    """One turn with a call, one with its result, by both APIs."""
    for responses in (False, True):
        one = create_agent(
            chat(base_url, model, use_responses_api=responses), [temperature], middleware=[the_tool_first]
        )
        messages = one.invoke({"messages": [("user", QUESTION)]})["messages"]
        calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
        results = [message for message in messages if isinstance(message, ToolMessage)]
        assert calls
        assert all(call["args"]["city"] in CITIES for call in calls)
        assert [result.tool_call_id for result in results] == [call["id"] for call in calls]
        assert [result.content for result in results] == [temperature.invoke(call["args"]) for call in calls]
        assert isinstance(messages[-1], AIMessage)
        assert messages[-1].text.strip()


def agent_streams(base_url: str, model: str) -> None:
    """Calls arrive in chunks, which together are those of the whole answer."""
    bound = chat(base_url, model).bind_tools([temperature], tool_choice="required", parallel_tool_calls=False)
    whole = bound.invoke(QUESTION)
    chunks = list(bound.stream(QUESTION))
    together: AIMessageChunk = sum(chunks[1:], chunks[0])
    assert [(call["name"], call["args"]) for call in together.tool_calls] == [
        (call["name"], call["args"]) for call in whole.tool_calls
    ]
    assert len(chunks) > 2
    one = create_agent(chat(base_url, model), [temperature], middleware=[the_tool_first])
    parts = [part for part, _ in one.stream({"messages": [("user", QUESTION)]}, stream_mode="messages")]
    assert any(isinstance(part, ToolMessage) for part in parts)
    assert sum(isinstance(part, AIMessageChunk) for part in parts) > 2


def a_named_tool_is_called(base_url: str, model: str) -> None:
    """Whatever the question is."""
    bound = chat(base_url, model).bind_tools([temperature, Report], tool_choice="Report")
    [call] = bound.invoke("Tell me a story.").tool_calls
    assert call["name"] == "Report"
    assert isinstance(Report(**call["args"]), Report)


def answers_have_a_type(base_url: str, model: str) -> None:
    """By JSON schema, by a call, and by JSON mode's looser promise of an object."""
    for method in ("json_schema", "function_calling"):
        found = chat(base_url, model).with_structured_output(Report, method=method).invoke("It is 21 degrees in Paris.")
        assert isinstance(found, Report), method


def an_agent_ends_with_a_type(base_url: str, model: str) -> None:
    """`response_format` of an agent."""
    one = create_agent(chat(base_url, model), response_format=Report)
    found = one.invoke({"messages": [("user", "It is 21 degrees in Paris.")]})["structured_response"]
    assert isinstance(found, Report)


if __name__ == "__main__":
    run([agent_calls_a_tool, agent_streams, a_named_tool_is_called, answers_have_a_type, an_agent_ends_with_a_type])
