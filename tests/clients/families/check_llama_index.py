"""llama-index: `OpenAILike` whole, streamed and async, an agent with a tool, typed answers, and embeddings."""

from __future__ import annotations

import asyncio
from typing import Literal

from checks import CITIES, DEGREES, QUESTION, run
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

City = Literal[CITIES]


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)


def llm(base_url: str, model: str, **options: object) -> OpenAILike:
    """The model."""
    given = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 4096, "max_tokens": 64}
    return OpenAILike(model=model, api_base=f"{base_url}/v1", api_key="none", temperature=0, max_retries=0, **given | options)


def temperature(city: City) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} degrees"


def chat_and_stream(base_url: str, model: str) -> None:
    """Chat and text completions: whole, streamed and async answers are the same."""
    messages = [ChatMessage(role="user", content=QUESTION)]
    one = llm(base_url, model)
    whole = one.chat(messages).message.content
    assert whole
    assert list(one.stream_chat(messages))[-1].message.content == whole
    assert asyncio.run(llm(base_url, model).achat(messages)).message.content == whole
    text = llm(base_url, model, is_chat_model=False)
    assert list(text.stream_complete("Once upon a time"))[-1].text == text.complete("Once upon a time").text


def a_tool_is_called(base_url: str, model: str) -> None:
    """A required call with arguments of the tool's types."""
    one = llm(base_url, model)
    found = one.chat_with_tools([FunctionTool.from_defaults(temperature)], user_msg=QUESTION, tool_required=True)
    [call] = one.get_tool_calls_from_response(found)
    assert call.tool_kwargs["city"] in CITIES


def agent_answers(base_url: str, model: str) -> None:
    """An agent that may call a tool ends with an answer."""
    agent = FunctionAgent(tools=[temperature], llm=llm(base_url, model), streaming=True)

    async def answer() -> str:
        return str(await agent.run(QUESTION, max_iterations=4, early_stopping_method="generate"))

    assert asyncio.run(answer()).strip()


def answers_have_a_type(base_url: str, model: str) -> None:
    """By a call of a function, and by a JSON schema."""
    prompt = PromptTemplate("It is {degrees} degrees in Paris.")
    for changes in ({}, {"should_use_structured_outputs": True}):
        assert isinstance(llm(base_url, model, **changes).structured_predict(Report, prompt, degrees=21), Report)


def embeddings(base_url: str, model: str) -> None:
    """One vector for each text."""
    one = OpenAILikeEmbedding(model_name=model, api_base=f"{base_url}/v1", api_key="none")
    first, second = one.get_text_embedding_batch(["a", "b c"])
    assert len(first) == len(second) > 1


if __name__ == "__main__":
    run([chat_and_stream, a_tool_is_called, agent_answers, answers_have_a_type, embeddings])
