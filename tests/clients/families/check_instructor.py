"""instructor: typed answers by tools, strict tools, JSON schema and JSON mode."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from checks import CITIES, run
from openai import OpenAI
from pydantic import BaseModel, Field

City = Literal[CITIES]
FACT = "It is 21 degrees in Paris."


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)


class Reports(BaseModel):
    """One or two of them."""

    reports: list[Report] = Field(min_length=1, max_length=2)


def client(base_url: str, mode: instructor.Mode) -> Any:
    """A client that asks for types in one way; it must get them at once."""
    return instructor.from_openai(OpenAI(base_url=f"{base_url}/v1", api_key="none"), mode=mode)


def ask(base_url: str, model: str, mode: instructor.Mode, kind: Any, **options: Any) -> Any:
    """One answer of a type."""
    return client(base_url, mode).create(
        model=model, messages=[{"role": "user", "content": FACT}], response_model=kind, max_retries=0, temperature=0,
        max_tokens=160, **options,
    )  # fmt: skip


def answers_have_a_type(base_url: str, model: str) -> None:
    """In every mode that states the type to the server."""
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        print(" ", mode.name, flush=True)
        assert isinstance(ask(base_url, model, mode, Report), Report)
        assert isinstance(ask(base_url, model, mode, Reports), Reports)


def a_partial_answer_grows(base_url: str, model: str) -> None:
    """Streamed arguments are the object of the whole answer in the end."""
    stream = client(base_url, instructor.Mode.TOOLS).create_partial(
        model=model, messages=[{"role": "user", "content": FACT}], response_model=Report, max_retries=0, temperature=0,
        max_tokens=160,
    )  # fmt: skip
    seen = list(stream)
    whole = ask(base_url, model, instructor.Mode.TOOLS, Report)
    assert len(seen) > 1
    assert (seen[-1].city, seen[-1].degrees) == (whole.city, whole.degrees)


if __name__ == "__main__":
    run([answers_have_a_type, a_partial_answer_grows])
