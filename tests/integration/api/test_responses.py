"""OpenAI's client and the Responses API of a real server with real weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.support.waiting import eventually

from .conftest import MODEL, Running, Start

QUESTION = "Name the capital of France."
KEYS = "first-key\nsecond-key\n"


@pytest.fixture(scope="module")
def keyed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEYS)
    return start("--api-key-file", str(keys))


@pytest.fixture(scope="module")
def client(keyed: Running) -> Iterator[OpenAI]:
    with OpenAI(api_key="first-key", base_url=f"{keyed.api.base_url}/v1", max_retries=0) as made:
        yield made


def ask(client: OpenAI, **fields: object) -> openai.types.responses.Response:
    return client.responses.create(
        **{"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 24} | fields
    )


def test_the_answer_is_that_of_chat(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    made = ask(client)
    assert made.output_text == chat.choices[0].message.content
    assert made.usage.input_tokens == chat.usage.prompt_tokens
    assert made.usage.output_tokens == chat.usage.completion_tokens


def test_a_stream_ends_in_the_whole_response(client: OpenAI) -> None:
    whole = ask(client, max_output_tokens=200)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=200) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.status == whole.status == "completed"


def test_a_conversation_continues_and_finds_its_prefix_in_the_cache(client: OpenAI) -> None:
    first = ask(client, instructions="Answer in one sentence. " * 20, max_output_tokens=40)
    follow_up = [
        *({"role": "system", "content": "Answer in one sentence. " * 20},),
    ]
    second = client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": "And of Spain? " * 20}],
        previous_response_id=ask(client, input=[*follow_up, {"role": "user", "content": QUESTION}]).id,
        temperature=0,
        max_output_tokens=24,
    )
    assert first.usage.input_tokens > 64
    assert second.usage.input_tokens_details.cached_tokens >= 64
    roles = [item.role for item in client.responses.input_items.list(second.id, order="asc")]
    assert roles == ["system", "user", "assistant", "user"]


def test_an_answer_sent_back_as_input_continues_it_too(client: OpenAI) -> None:
    question = {"role": "user", "content": QUESTION}
    more = {"role": "user", "content": "And of Spain?"}
    first = ask(client, input=[question])
    by_id = ask(client, input=[more], previous_response_id=first.id)
    by_items = ask(client, input=[question, *first.output, more], store=False)
    dumped = ask(client, input=[question, *(item.model_dump() for item in first.output), more])
    assert by_id.output_text == by_items.output_text == dumped.output_text


def test_log_probabilities(client: OpenAI) -> None:
    made = ask(client, include=["message.output_text.logprobs"], top_logprobs=3, max_output_tokens=5)
    [part] = made.output[0].content
    assert len(part.logprobs) == 5
    assert all(len(row.top_logprobs) == 3 and row.logprob <= 0 for row in part.logprobs)
    assert "".join(row.token for row in part.logprobs) == made.output_text


def test_items_of_a_stored_response_come_in_pages(client: OpenAI) -> None:
    made = ask(client, input=[{"role": "user", "content": str(number)} for number in range(5)])
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert texts == ["0", "1", "2", "3", "4"]


def test_input_tokens(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION, instructions="Be brief.")
    assert counted.input_tokens == ask(client, instructions="Be brief.").usage.input_tokens


def test_background_is_polled_cancelled_and_deleted(client: OpenAI, keyed: Running) -> None:
    made = ask(client, input="Tell a story.", background=True, max_output_tokens=900)
    assert made.status == "queued"
    eventually(lambda: client.responses.retrieve(made.id).status == "in_progress")
    cancelled = client.responses.cancel(made.id)
    assert (cancelled.status, client.responses.retrieve(made.id)) == ("cancelled", cancelled)
    eventually(lambda: keyed.load()["running"] == 0)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_background_stream_is_resumed(client: OpenAI) -> None:
    seen = []
    stream = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=24, background=True, stream=True
    )
    for event in stream:
        seen.append(event)
        if len(seen) == 8:
            stream.close()
            break
    name = seen[0].response.id
    rest = list(client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number))
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    deltas = [event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta"]
    assert "".join(deltas) == rest[-1].response.output_text == ask(client).output_text


async def test_the_asynchronous_client_with_many_at_once(keyed: Running, client: OpenAI) -> None:
    expected = ask(client).output_text
    async with AsyncOpenAI(api_key="first-key", base_url=f"{keyed.api.base_url}/v1") as made:

        async def one() -> str:
            stream = await made.responses.create(
                model=MODEL, input=QUESTION, temperature=0, max_output_tokens=24, stream=True
            )
            return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

        texts = await asyncio.gather(*(one() for _ in range(4)))
    assert set(texts) == {expected}


def test_another_key_finds_nothing(client: OpenAI, keyed: Running) -> None:
    made = ask(client)
    with OpenAI(api_key="second-key", base_url=f"{keyed.api.base_url}/v1", max_retries=0) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            ask(other, previous_response_id=made.id)
    with (
        OpenAI(api_key="wrong", base_url=f"{keyed.api.base_url}/v1", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        ask(stranger)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_a_refusal_is_the_clients_bad_request(client: OpenAI, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param


def test_a_prompt_that_is_too_long_is_refused_or_truncated(client: OpenAI) -> None:
    turns = [{"role": role, "content": "word " * 60} for _ in range(12) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": QUESTION})
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, input=turns)
    assert caught.value.code == "context_length_exceeded"
    made = ask(client, input=turns, truncation="auto")
    assert made.usage.input_tokens <= 1024 - 24
    assert made.output_text


def test_a_server_may_keep_nothing(start: Start) -> None:
    server = start("--response-store-entries", "0")
    with OpenAI(api_key="none", base_url=f"{server.api.base_url}/v1", max_retries=0) as client:
        made = ask(client)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="--response-store-entries"):
            ask(client, store=True)


def test_a_server_keeps_as_many_responses_as_set(start: Start) -> None:
    server = start("--response-store-entries", "4", "--response-store-tenant-percent", "50")
    with OpenAI(api_key="none", base_url=f"{server.api.base_url}/v1", max_retries=0) as client:
        names = [ask(client, max_output_tokens=1).id for _ in range(3)]
        assert [client.responses.retrieve(name).id for name in names[1:]] == names[1:]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(names[0])
    assert 'octavo:response_store_entries{model_name="smollm2"} 2.0' in server.admin.get("/metrics").text


def test_a_drain_waits_for_background(start: Start) -> None:
    server = start()
    with OpenAI(api_key="none", base_url=f"{server.api.base_url}/v1", max_retries=0) as client:
        made = ask(client, background=True, max_output_tokens=60, input="Tell a story.")
        server.admin.post("/v1/octavo/drain")
        eventually(lambda: client.responses.retrieve(made.id).status == "incomplete")
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert re.search("cut", server.log) is None
