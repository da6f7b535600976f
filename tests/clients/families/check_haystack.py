"""haystack: chat generators by chat completions and by responses, in a pipeline and in an agent, and embedders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

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
    cancel_task,
    raises,
    run,
)
from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

ASKED = [ChatMessage.from_user(QUESTION)]
# Each generator, with its name of the limit of tokens.
GENERATORS = ((OpenAIChatGenerator, "max_completion_tokens"), (OpenAIResponsesChatGenerator, "max_output_tokens"))


@tool
def temperature(city: City, unit: Literal["celsius", "kelvin"]) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} {unit}"


def connection(place: Place, **options: Any) -> dict[str, Any]:
    """What every component is given, without retries by default."""
    key = options.pop("key", place.key)
    given = {"model": place.model, "api_base_url": place.base_url, "api_key": Secret.from_token(key)}
    return given | {"max_retries": 0, "timeout": 60} | options


def generators(place: Place, tokens: int = 96, more: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """A generator of each API. `more` are fields of the request, the options are the generator's."""
    for kind, limit in GENERATORS:
        fields = {"temperature": 0, limit: tokens} | (more or {})
        yield kind(**connection(place, **options), generation_kwargs=fields)


def reply_of(generator: Any, messages: Any = ASKED, **options: Any) -> ChatMessage:
    """The one reply."""
    [reply] = generator.run(messages, **options)["replies"]
    return reply


def chat(place: Place) -> None:
    """Two turns with usage, and a pipeline, by both APIs; two replies by chat completions."""
    for generator in generators(place):
        first = reply_of(generator)
        second = reply_of(generator, [*ASKED, first, ChatMessage.from_user("And in Oslo?")])
        assert first.text
        assert second.text
        tokens = [reply.meta["usage"]["total_tokens"] for reply in (first, second)]
        assert tokens[1] > tokens[0]
    for generator in generators(place):
        pipeline = Pipeline()
        pipeline.add_component(
            "prompt", ChatPromptBuilder([ChatMessage.from_user("{{question}}")], required_variables="*")
        )
        pipeline.add_component("llm", generator)
        pipeline.connect("prompt.prompt", "llm.messages")
        assert pipeline.run({"prompt": {"question": QUESTION}})["llm"]["replies"][0].text
    found = next(generators(place, more={"n": 2})).run(ASKED)["replies"]
    assert [reply.text for reply in found] == [found[0].text] * 2


def stream(place: Place) -> None:
    """The text of the whole answer and its usage, by both APIs."""
    for generator in generators(place):
        whole = reply_of(generator)
        chunks: list[Any] = []
        fields = {"stream_options": {"include_usage": True}} if isinstance(generator, OpenAIChatGenerator) else {}
        reply = reply_of(generator, streaming_callback=chunks.append, generation_kwargs=fields)
        assert "".join(chunk.content for chunk in chunks) == reply.text == whole.text
        assert len([chunk for chunk in chunks if chunk.content]) > 2
        assert reply.meta["usage"]["total_tokens"] == whole.meta["usage"]["total_tokens"]


def asynchronous(place: Place) -> None:
    """Eight at once, and a stream, by both APIs."""

    async def all_at_once(generator: Any) -> None:
        found = await asyncio.gather(*(generator.run_async(ASKED) for _ in range(8)))
        parts: list[str] = []

        async def keep(chunk: Any) -> None:
            parts.append(chunk.content)

        await generator.run_async(ASKED, streaming_callback=keep)
        assert [each["replies"][0].text for each in found] == ["".join(parts)] * 8

    for generator in generators(place):
        asyncio.run(all_at_once(generator))


def tools(place: Place) -> None:
    """A required call, its result, an answer; streamed, the call is the same; an agent calls it; by both APIs."""
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    for generator in generators(place, tokens=400, tools=[temperature], more=forced):
        reply = reply_of(generator)
        [call] = reply.tool_calls
        assert call.arguments["city"] in CITIES
        result = temperature.invoke(**call.arguments)
        after = [*ASKED, reply, ChatMessage.from_tool(result, origin=call)]
        assert reply_of(generator, after, generation_kwargs={"tool_choice": "none"}).text
        chunks: list[Any] = []
        [streamed] = reply_of(generator, streaming_callback=chunks.append).tool_calls
        assert (streamed.tool_name, streamed.arguments) == (call.tool_name, call.arguments)
        assert len([chunk for chunk in chunks if chunk.tool_calls]) > 1
        agent = Agent(chat_generator=generator, tools=[temperature], exit_conditions=["temperature"])
        last = agent.run(messages=ASKED)["messages"][-1]
        assert last.tool_call_result.result == result
    for generator in generators(place, tokens=400, tools=[temperature], tools_strict=True, more=forced):
        assert reply_of(generator).tool_call.arguments["city"] in CITIES


def structured_output(place: Place) -> None:
    """A type of pydantic and a JSON schema, by both APIs; streamed, the JSON is the same."""
    schema = {"name": "report", "strict": True, "schema": Report.model_json_schema() | {"additionalProperties": False}}
    by_schema = {"type": "json_schema", "json_schema": schema}
    fields: tuple[list[dict[str, Any]], ...] = (
        [{"response_format": Report}, {"response_format": by_schema}],
        [{"text_format": Report}, {"text": {"format": {"type": "json_schema"} | schema}}],
    )
    for generator, (by_type, by_dict) in zip(generators(place), fields, strict=True):
        assert Report.model_validate_json(reply_of(generator, generation_kwargs=by_type).text or "")
        whole = reply_of(generator, generation_kwargs=by_dict).text
        assert Report.model_validate_json(whole or "")
        chunks: list[Any] = []
        assert reply_of(generator, generation_kwargs=by_dict, streaming_callback=chunks.append).text == whole


def embeddings(place: Place) -> None:
    """One vector for each document, and the same for a text, also async."""
    documents = [Document(content="a"), Document(content="b c")]
    embedder = OpenAIDocumentEmbedder(**connection(place), progress_bar=False, raise_on_failure=True)
    first, second = (document.embedding or [] for document in embedder.run(documents)["documents"])
    assert len(first) == len(second) > 1
    vectors = [OpenAITextEmbedder(**connection(place)).run("b c")["embedding"]]
    vectors += [asyncio.run(OpenAITextEmbedder(**connection(place)).run_async("b c"))["embedding"]]
    for vector in vectors:
        assert max(abs(a - b) for a, b in zip(vector, second, strict=True)) < 1e-5


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and a key's limit, each as openai's class, by both APIs."""
    for generator in generators(place):
        long = raises(openai.BadRequestError, lambda generator=generator: generator.run(LONG_PROMPT))
        assert long.code == "context_length_exceeded"
    for generator in generators(place, model="no-such-model"):
        raises(openai.NotFoundError, lambda generator=generator: generator.run(ASKED))
    for generator in generators(place, key=WRONG_KEY):
        raises(openai.AuthenticationError, lambda generator=generator: generator.run(ASKED))
    if place.limited_key:
        for generator in generators(place, key=place.limited_key):
            raises(openai.RateLimitError, lambda generator=generator: [generator.run(ASKED) for _ in range(2)])


def retries(place: Place) -> None:
    """503 is openai's `InternalServerError`; with retries the answer comes, by both APIs."""
    for once, often in zip(generators(place), generators(place, max_retries=8), strict=True):
        with asleep(place):
            raises(openai.InternalServerError, lambda once=once: once.run(ASKED))
            assert reply_of(often).text


def cancel(place: Place) -> None:
    """An async stream and an async call that are cancelled, by both APIs."""

    async def cancelled(generator: Any, fields: dict[str, Any]) -> None:
        begun = asyncio.Event()

        async def begin(chunk: Any) -> None:
            begun.set()

        for callback in (begin, None):
            task = asyncio.create_task(
                generator.run_async(COUNT, streaming_callback=callback, generation_kwargs=fields)
            )
            await begun.wait()
            await cancel_task(place, task)

    # The Responses API has no such field; the answer is long nevertheless.
    for generator, fields in zip(
        generators(place, tokens=LONG_ANSWER), ({"extra_body": {"ignore_eos": True}}, {}), strict=True
    ):
        asyncio.run(cancelled(generator, fields))


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
