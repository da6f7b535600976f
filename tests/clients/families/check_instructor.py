"""instructor: typed answers by tools, strict tools, responses, JSON schema and JSON mode, also asked for again."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
import openai
from answers import Report
from checks import (
    COUNT,
    LONG_ANSWER,
    LONG_PROMPT,
    QUESTION,
    WRONG_KEY,
    Place,
    asleep,
    assert_cancelled,
    assert_idle,
    cancel_task,
    raises,
    run,
)
from instructor import Mode
from instructor.core import IncompleteOutputException, InstructorRetryException
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

FACT = "It is 21 degrees in Paris."
CALLS = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.RESPONSES_TOOLS)
# These state the type to the server, which keeps to it.
TYPED = (*CALLS, Mode.JSON_SCHEMA)


class Reports(BaseModel):
    """One or two of them."""

    reports: list[Report] = Field(min_length=1, max_length=2)


class Anything(BaseModel):
    """What JSON mode promises: an object."""

    model_config = ConfigDict(extra="allow")


def picky() -> type[Report]:
    """A report that is refused once, as by a rule that no schema states."""
    refusals = iter(["This was not measured well."])

    class Picky(Report):
        @model_validator(mode="after")
        def refuse_once(self) -> Picky:
            for refusal in refusals:
                raise ValueError(refusal)
            return self

    return Picky


def client(place: Place, mode: Mode = Mode.TOOLS, **options: Any) -> Any:
    """A client that asks for types in one way, without retries by default."""
    access = {"base_url": place.base_url, "api_key": place.key, "max_retries": 0}
    return instructor.from_openai(OpenAI(**access | options), mode=mode)


def async_client(place: Place, mode: Mode = Mode.TOOLS) -> Any:
    """The same, asynchronous."""
    return instructor.from_openai(AsyncOpenAI(base_url=place.base_url, api_key=place.key, max_retries=0), mode=mode)


def asked(place: Place, kind: Any, text: str = FACT, **options: Any) -> dict[str, Any]:
    """What a request gives; the first answer has to have the type."""
    messages = [{"role": "user", "content": text}]
    fixed = {"model": place.model, "messages": messages, "response_model": kind, "max_retries": 0, "temperature": 0}
    return fixed | {"max_tokens": 160} | options


def chat(place: Place) -> None:
    """Without a type the answer is a text, by both APIs; with one, the completion comes too."""
    found = client(place).create(**asked(place, None, QUESTION))
    assert found.choices[0].message.content
    assert client(place, Mode.RESPONSES_TOOLS).create(**asked(place, None, QUESTION)).output_text
    report, completion = client(place).create_with_completion(**asked(place, Report))
    assert isinstance(report, Report)
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def stream(place: Place) -> None:
    """A text, a partial answer that grows to the whole one, and a list by its members."""
    plain = asked(place, None, QUESTION)
    texts = [
        chunk.choices[0].delta.content or "" for chunk in client(place).create(**plain, stream=True) if chunk.choices
    ]
    assert "".join(texts) == client(place).create(**plain).choices[0].message.content
    assert len(texts) > 2
    for mode in TYPED:
        one = client(place, mode)
        whole, seen = one.create(**asked(place, Report)), list(one.create_partial(**asked(place, Report)))
        assert len(seen) > 1, mode
        assert (seen[-1].city, seen[-1].degrees) == (whole.city, whole.degrees), mode
    # Its other modes ask for an object that need not have the list.
    members = list(client(place, Mode.RESPONSES_TOOLS).create_iterable(**asked(place, Report)))
    assert members
    assert all(isinstance(member, Report) for member in members)


async def asynchronous(place: Place) -> None:
    """Eight at once, and a partial answer that grows, in every mode that states the type."""
    for mode in TYPED:
        one = async_client(place, mode)
        found = await asyncio.gather(*(one.create(**asked(place, Report)) for _ in range(8)))
        seen = [part async for part in one.create_partial(**asked(place, Report))]
        assert [(report.city, report.degrees) for report in found] == [(seen[-1].city, seen[-1].degrees)] * 8, mode


def tools(place: Place) -> None:
    """A call of a named tool; what is wrong with its arguments goes back as its result, and another call follows."""
    for mode in CALLS:
        assert isinstance(client(place, mode).create(**asked(place, Report)), Report), mode
        assert isinstance(client(place, mode).create(**asked(place, picky(), max_retries=1)), Report), mode
        refused = raises(
            InstructorRetryException, lambda mode=mode: client(place, mode).create(**asked(place, picky()))
        )  # fmt: skip
        assert len(refused.failed_attempts) == 1, mode


def structured_output(place: Place) -> None:
    """In every mode that states the type to the server, and with an answer that is asked for again."""
    for mode in TYPED:
        for kind in (Report, Reports, picky()):
            assert isinstance(client(place, mode).create(**asked(place, kind, max_retries=1)), kind), mode
    # The prompt states the type to the model, the field states it to the server.
    stated = {"structured_outputs": {"json": Report.model_json_schema()}}
    assert isinstance(client(place, Mode.MD_JSON).create(**asked(place, Report, extra_body=stated)), Report)


def json_mode(place: Place) -> None:
    """An object of any type, if the model ends it in time."""
    try:
        found = client(place, Mode.JSON).create(**asked(place, Anything, max_tokens=400))
    except IncompleteOutputException:
        return
    assert isinstance(found, Anything)


def errors(place: Place) -> None:
    """Too long a prompt, a wrong field, an unknown model, a wrong key, a key's limit, as causes of its own error."""
    for expected, text, changes in (
        (openai.BadRequestError, LONG_PROMPT, {}),
        (openai.BadRequestError, FACT, {"top_p": 2}),
        (openai.NotFoundError, FACT, {"model": "no-such-model"}),
    ):
        for mode in TYPED:
            typed = asked(place, Report, text, **changes)
            found = raises(InstructorRetryException, lambda mode=mode, typed=typed: client(place, mode).create(**typed))
            assert isinstance(found.__cause__, expected), mode
            assert (found.__cause__.code == "context_length_exceeded") == (text == LONG_PROMPT), mode
    wrong = client(place, api_key=WRONG_KEY)
    found = raises(InstructorRetryException, lambda: wrong.create(**asked(place, Report)))
    assert isinstance(found.__cause__, openai.AuthenticationError)
    raises(openai.AuthenticationError, lambda: wrong.create(**asked(place, None)))
    if place.limited_key:
        limited = client(place, api_key=place.limited_key)
        found = raises(InstructorRetryException, lambda: [limited.create(**asked(place, Report)) for _ in range(2)])
        assert isinstance(found.__cause__, openai.RateLimitError)


def retries(place: Place) -> None:
    """503 is an `InternalServerError`; the answer comes with the retries of `openai`, and with those of instructor."""
    with asleep(place):
        found = raises(InstructorRetryException, lambda: client(place).create(**asked(place, Report)))
        assert isinstance(found.__cause__, openai.InternalServerError)
        assert isinstance(client(place, max_retries=8).create(**asked(place, Report)), Report)
    again = Retrying(
        stop=stop_after_attempt(16), wait=wait_fixed(1), retry=retry_if_exception_type(openai.InternalServerError)
    )  # fmt: skip
    with asleep(place):
        assert isinstance(client(place).create(**asked(place, Report, max_retries=again)), Report)


class Story(BaseModel):
    """A type whose answers are long."""

    reports: list[Report] = Field(min_length=150, max_length=150)


def cancel(place: Place) -> None:
    """A stream that is closed, and a call that ran out of time."""
    long = asked(place, None, COUNT, max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True})
    chunks = client(place).create(**long, stream=True)
    next(iter(chunks))
    assert_cancelled(place, chunks.close)
    raises(openai.APITimeoutError, lambda: client(place, timeout=1).create(**long))
    assert_idle(place)


async def cancelled_task(place: Place) -> None:
    """An async call for a type, and a reader of a partial answer."""
    long = asked(place, Story, max_tokens=LONG_ANSWER)

    async def read() -> None:
        async for _ in async_client(place).create_partial(**long):
            pass

    for begin in (lambda: async_client(place).create(**long), read):
        task = asyncio.create_task(begin())
        await cancel_task(place, task)


if __name__ == "__main__":
    run(
        chat=chat,
        stream=stream,
        asynchronous=lambda place: asyncio.run(asynchronous(place)),
        tools=tools,
        structured_output=(structured_output, json_mode),
        embeddings="it has no embeddings",
        errors=errors,
        retries=retries,
        cancel=(cancel, lambda place: asyncio.run(cancelled_task(place))),
    )
