"""litellm: chat, text and embeddings, streamed and async, tools, typed answers, and the errors that it maps."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import litellm
from checks import CITIES, QUESTION, run
from pydantic import BaseModel, Field

City = Literal[CITIES]
TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "The temperature in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": list(CITIES)}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
MESSAGES = [{"role": "user", "content": QUESTION}]


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)


def options(base_url: str, model: str, provider: str = "openai") -> dict[str, Any]:
    """What every call gives."""
    return {
        "model": f"{provider}/{model}", "api_base": f"{base_url}/v1", "api_key": "none", "temperature": 0,
        "max_tokens": 24, "num_retries": 0,
    }  # fmt: skip


def chat_and_stream(base_url: str, model: str) -> None:
    """As OpenAI and as vLLM, whole, streamed and async: the same text, and usage in the last chunk."""
    for provider in ("openai", "hosted_vllm"):
        given = options(base_url, model, provider)
        whole = litellm.completion(messages=MESSAGES, **given)
        assert whole.choices[0].message.content
        chunks = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **given))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert usage[-1].completion_tokens == whole.usage.completion_tokens
        again = asyncio.run(litellm.acompletion(messages=MESSAGES, **given))
        assert again.choices[0].message.content == whole.choices[0].message.content


def text_completion(base_url: str, model: str) -> None:
    """The older endpoint."""
    given = options(base_url, model, "text-completion-openai")
    assert litellm.text_completion(prompt="Once upon a time", **given).choices[0].text


def tools(base_url: str, model: str) -> None:
    """A required call, its result, an answer; streamed, the call is the same."""
    given = options(base_url, model) | {"max_tokens": 96}
    asked = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    message = litellm.completion(messages=MESSAGES, **asked, **given).choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES
    result = {"role": "tool", "tool_call_id": call.id, "content": "27"}
    after = [*MESSAGES, message.model_dump(), result]
    assert litellm.completion(messages=after, tools=[TOOL], tool_choice="none", **given).choices[0].message.content
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, **asked, **given))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.tool_calls[0].function.arguments == call.function.arguments


def answers_have_a_type(base_url: str, model: str) -> None:
    """By a JSON schema."""
    given = options(base_url, model) | {"max_tokens": 96}
    found = litellm.completion(messages=MESSAGES, response_format=Report, **given)
    Report.model_validate_json(found.choices[0].message.content)


def embeddings(base_url: str, model: str) -> None:
    """One vector for each text."""
    given = {name: value for name, value in options(base_url, model).items() if name not in {"temperature", "max_tokens"}}
    found = litellm.embedding(input=["a", "b c"], **given)
    assert [len(each["embedding"]) for each in found.data] == [len(found.data[0]["embedding"])] * 2


def errors_are_mapped(base_url: str, model: str) -> None:
    """A prompt that is too long is a `ContextWindowExceededError`, an unknown model a `NotFoundError`."""
    given = options(base_url, model)
    long = [{"role": "user", "content": "word " * 5000}]
    for messages, changes, expected in (
        (long, {}, litellm.ContextWindowExceededError),
        (MESSAGES, {"model": "openai/no-such-model"}, litellm.NotFoundError),
        (MESSAGES, {"top_p": 2}, litellm.BadRequestError),
    ):
        try:
            litellm.completion(messages=messages, **given | changes)
        except expected:
            continue
        raise AssertionError(f"{expected.__name__} was not raised")


if __name__ == "__main__":
    run([chat_and_stream, text_completion, tools, answers_have_a_type, embeddings, errors_are_mapped])
