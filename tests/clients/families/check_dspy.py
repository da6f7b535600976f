"""dspy: language models by each API and both engines, programs whole, streamed and async, tools, typed answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import dspy
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
from dspy import lm15
from dspy.utils.exceptions import (
    ContextWindowExceededError,
    LMAuthError,
    LMRateLimitError,
    LMServerError,
    LMUnsupportedModelError,
)

ENGINES = ("lm15", "litellm")


class Estimate(dspy.Signature):
    """Estimate the temperature in a city."""

    question: str = dspy.InputField()
    report: Report = dspy.OutputField()


class Ask(dspy.Module):
    """A program that sends a prepared request."""

    async def aforward(self, request: lm15.Request) -> dspy.Prediction:
        """The answer."""
        return dspy.Prediction(answer=(await dspy.settings.lm.acall(request)).text)


def temperature(city: City) -> str:
    """The temperature in a city."""
    return f"{DEGREES[city]} degrees"


def model(place: Place, provider: str = "openai", name: str = "", **options: Any) -> dspy.LM:
    """A language model without a cache, without retries by default."""
    given = {"api_base": place.base_url, "api_key": place.key, "cache": False, "num_retries": 0}
    return dspy.LM(f"{provider}/{name or place.model}", **given | {"temperature": 0, "max_tokens": 96} | options)


def declared(place: Place, **options: Any) -> dspy.LM:
    """The same by a provider that says that the model calls functions and keeps to schemas."""
    access = lm15.AccessPolicy(provider="octavo", base_url=place.base_url)
    definition = lm15.ProviderDefinition.chat(access, compat=lm15.OpenAIChatCompat())
    supports = lm15.ModelSupport(function_calling=True, response_schema=True)
    lm15.register_provider(definition, supports=supports)
    return model(place, "octavo", **options)


def models(place: Place, **options: Any) -> Iterator[dspy.LM]:
    """Chat completions by both engines, responses by both, and as vLLM."""
    for engine in ENGINES:
        for kind in ("chat", "responses"):
            yield model(place, engine=engine, model_type=kind, **options)
    yield model(place, "hosted_vllm", **options)


def text_of(output: Any) -> str:
    """The text of an output, which is a dictionary by the Responses API."""
    return output["text"] if isinstance(output, dict) else output


def chat(place: Place) -> None:
    """An answer and its usage by each API; two at once; text completions."""
    for one in models(place):
        [output] = one(QUESTION)
        assert text_of(output)
        assert one.history[-1]["usage"]["total_tokens"]
    for engine in ENGINES:
        two = model(place, engine=engine)(QUESTION, n=2)
        assert two == [two[0]] * 2
    assert model(place, model_type="text")("Once upon a time")[0]


def request(one: dspy.LM, messages: Any, tools: Any = (), **config: Any) -> lm15.Request:
    """A prepared request."""
    return lm15.Request(
        one.model, tuple(messages), tools=tuple(tools), config=lm15.Config(**{"temperature": 0} | config)
    )


def stream_of_a_request(place: Place) -> None:
    """The text of the whole answer in parts, by each API; LiteLLM's engine streams no responses."""
    for one in models(place):
        if (one.engine, one.model_type) == ("litellm", "responses"):
            continue
        asked = request(one, [lm15.Message.user(QUESTION)], max_tokens=96)
        with dspy.context(lm=one):
            streamed = dspy.streamify(Ask(), is_async_program=True, async_streaming=False)
            *chunks, whole = list(streamed(asked))
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(texts) == whole.answer == one(asked).text
        assert len(texts) > 2


def stream_of_a_program(place: Place) -> None:
    """A program's field in parts, as JSON, by both engines."""
    for engine in ENGINES:
        with dspy.context(lm=declared(place, engine=engine, max_tokens=400), adapter=dspy.JSONAdapter()):
            program = dspy.Predict("question -> answer")
            listener = dspy.streaming.StreamListener(signature_field_name="answer")
            streamed = dspy.streamify(program, stream_listeners=[listener], async_streaming=False)
            *parts, whole = list(streamed(question=QUESTION))
            assert whole.answer == program(question=QUESTION).answer
        assert json.loads("".join(part.chunk for part in parts)) == whole.answer
        assert len(parts) > 1


def asynchronous(place: Place) -> None:
    """Eight at once by each API."""

    async def all_at_once(one: dspy.LM) -> None:
        found = await asyncio.gather(*(one.acall(QUESTION) for _ in range(8)))
        assert [text_of(output) for [output] in found] == [text_of(one(QUESTION)[0])] * 8

    for one in models(place):
        asyncio.run(all_at_once(one))


def agent_calls_a_tool(place: Place) -> None:
    """`ReActV2` calls the tool once, the result goes back, and it submits an answer of the type, by both engines."""
    forced = {"type": "function", "function": {"name": "temperature"}}
    for engine in ENGINES:
        one = declared(place, engine=engine, max_tokens=400, tool_choice=forced, parallel_tool_calls=False)
        with dspy.context(lm=one, adapter=dspy.JSONAdapter()):
            agent = dspy.ReActV2("question -> degrees: int", tools=[temperature], max_iters=1)
            found = agent(question=QUESTION)
        calls = found.history.messages[0]["tool_calls"]
        [call], [done] = calls.tool_calls, calls.tool_call_results.tool_call_results
        assert call.args["city"] in CITIES
        sent = [message["content"] for message in one.history[-1]["messages"] if message["role"] == "tool"]
        assert sent == [done.value]
        assert isinstance(found.degrees, int)


def request_calls_a_tool(place: Place) -> None:
    """A request with a tool, by both engines and both APIs: a required call, its result, an answer."""
    properties = {"city": {"enum": list(CITIES)}}
    parameters = {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}
    tool = lm15.FunctionTool("temperature", "The temperature in a city.", parameters)
    for one in models(place):
        asked = [lm15.Message.user(QUESTION)]
        forced = lm15.ToolChoice(mode="required", parallel=False)
        found = one(request(one, asked, [tool], max_tokens=96, tool_choice=forced))
        [call] = found.tool_calls
        assert call.input["city"] in CITIES
        asked += [found.message, lm15.Message.tool(call.id, temperature(call.input["city"]))]
        assert one(request(one, asked, [tool], max_tokens=96, tool_choice=lm15.ToolChoice(mode="none"))).text


def structured_output(place: Place) -> None:
    """A typed field of a program, whole and async, and a type of pydantic and JSON mode for a call, by both engines."""
    for engine in ENGINES:
        with dspy.context(lm=declared(place, engine=engine), adapter=dspy.JSONAdapter()):
            program = dspy.Predict(Estimate)
            assert isinstance(program(question=QUESTION).report, Report)
            assert isinstance(asyncio.run(program.acall(question=QUESTION)).report, Report)
        one = model(place, engine=engine)
        assert Report.model_validate_json(one(QUESTION, response_format=Report)[0])
        assert one(QUESTION, response_format={"type": "json_object"})[0].lstrip().startswith("{")
    by_responses = model(place, model_type="responses")(QUESTION, response_format=Report)[0]
    assert Report.model_validate_json(text_of(by_responses))


def embeddings(place: Place) -> None:
    """One vector for each text, also async."""
    given = {"api_base": place.base_url, "api_key": place.key, "caching": False}
    embedder = dspy.Embedder(f"openai/{place.model}", **given)
    found = embedder(["a", "b c"])
    assert found.shape[0] == 2
    assert found.shape[1] > 1
    assert abs(asyncio.run(embedder.acall(["b c"]))[0] - found[1]).max() < 1e-5


def errors(place: Place) -> None:
    """Too long a prompt, an unknown model, a wrong key, and a key's limit, each as its own class, by each API."""
    for one in models(place):
        long = raises(ContextWindowExceededError, lambda one=one: one(LONG_PROMPT))
        assert long.status == 400
    for one in models(place, name="no-such-model"):
        raises(LMUnsupportedModelError, lambda one=one: one(QUESTION))
    for one in models(place, api_key=WRONG_KEY):
        raises(LMAuthError, lambda one=one: one(QUESTION))
    if place.limited_key:
        for one in models(place, api_key=place.limited_key):
            refused = raises(LMRateLimitError, lambda one=one: [one(QUESTION) for _ in range(2)])
            # LiteLLM drops the header where the API is Responses.
            assert (one.engine, one.model_type) == ("litellm", "responses") or refused.retry_after >= 1


def retries(place: Place) -> None:
    """503 is an `LMServerError`; with retries the answer comes, by each API."""
    for once, often in zip(models(place), models(place, num_retries=8), strict=True):
        with asleep(place):
            raises(LMServerError, lambda once=once: once(QUESTION))
            assert text_of(often(QUESTION)[0])


def cancel(place: Place) -> None:
    """A streamed program and a call that are cancelled, by both engines."""

    async def ended(one: dspy.LM) -> None:
        long = request(one, [lm15.Message.user(COUNT)], max_tokens=LONG_ANSWER, extensions={"ignore_eos": True})
        begun = asyncio.Event()

        async def streamed() -> None:
            async for _ in dspy.streamify(Ask(), is_async_program=True)(long):
                begun.set()

        with dspy.context(lm=one):
            for call in (streamed(), one.acall(long)):
                task = asyncio.create_task(call)
                await begun.wait()
                await cancel_task(place, task)

    for engine in ENGINES:
        asyncio.run(ended(model(place, engine=engine)))


if __name__ == "__main__":
    # Otherwise it asks the maker's host for prices of models.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    run(
        chat=chat,
        stream=(stream_of_a_request, stream_of_a_program),
        asynchronous=asynchronous,
        tools=(agent_calls_a_tool, request_calls_a_tool),
        structured_output=structured_output,
        embeddings=embeddings,
        errors=errors,
        retries=retries,
        cancel=cancel,
    )
