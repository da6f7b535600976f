"""The Anthropic API of the real server, as its own client sees it."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from tests.support.waiting import eventually

MODEL = "smollm2"
QUESTION = {"role": "user", "content": "Name the capital of France."}


def asked(**fields):
    # The client has no argument for the temperature any more; the API keeps the field.
    greedy = {"model": MODEL, "max_tokens": 24, "messages": [QUESTION], "extra_body": {"temperature": 0}}
    return greedy | fields


@pytest.fixture(scope="module")
def url(server) -> str:
    return str(server.api.base_url).rstrip("/")


@pytest.fixture(scope="module")
def client(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_is_the_answer_of_a_chat_completion(server, client):
    answer = client.messages.create(**asked())
    chat = server.chat(max_tokens=24)
    assert answer.content[0].text == chat["choices"][0]["message"]["content"]
    assert "Paris" in answer.content[0].text
    assert (answer.type, answer.role, answer.model, answer.stop_reason) == ("message", "assistant", MODEL, "end_turn")
    assert answer.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert answer._request_id


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 3},
        {"stop_sequences": [" Paris"]},
        {"system": "You answer in one word.", "messages": [QUESTION, {"role": "assistant", "content": "The capital"}]},
        {"messages": [{"role": "user", "content": "Write a poem with emoji \N{CAT FACE}."}], "max_tokens": 60},
    ],
    ids=str,
)
def test_a_stream_is_the_whole_answer(client, fields):
    client.messages.create(**asked(**fields))
    whole = client.messages.create(**asked(**fields))
    with client.messages.stream(**asked(**fields)) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content)
    assert streamed.to_dict() | {"id": ""} == whole.to_dict() | {"id": ""}


def test_raw_events_come_in_order(client):
    kinds = [event.type for event in client.messages.create(**asked(stream=True))]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_final_assistant_message_is_continued(client):
    begun = "The capital of France is"
    answer = client.messages.create(**asked(messages=[QUESTION, {"role": "assistant", "content": begun}], max_tokens=8))
    assert answer.content[0].text.startswith(" Paris")


def test_a_history_with_an_answer_is_accepted(client):
    first = client.messages.create(**asked())
    again = {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]}
    answer = client.messages.create(**asked(messages=[QUESTION, first.to_param(), again]))
    assert "Rome" in answer.content[0].text


def test_stop_sequences_end_the_answer(client):
    answer = client.messages.create(**asked(stop_sequences=["zzz", "Paris"]))
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in answer.content[0].text


def test_max_tokens_beyond_the_context_is_an_upper_bound(client):
    assert client.messages.create(**asked(max_tokens=20_000)).stop_reason == "end_turn"


def test_tokens_are_counted_as_they_are_used(client):
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(model=MODEL, system=system, messages=[QUESTION])
    usage = client.messages.create(**asked(system=system)).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens + 0


def test_a_repeated_prompt_is_read_from_the_cache(client):
    long = [{"role": "user", "content": "The five boxing wizards jump quickly. " * 12}]
    first, second = (client.messages.create(**asked(messages=long, max_tokens=4)).usage for _ in range(2))
    assert second.cache_read_input_tokens >= 64
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
    assert second.cache_creation_input_tokens == 0


def test_models_are_listed(client):
    [model] = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == (MODEL, "model", 1024)
    assert client.models.retrieve(MODEL).to_dict() == model.to_dict()


async def test_the_asynchronous_client_has_several_answers_at_once(url):
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole, streamed = await asyncio.gather(client.messages.create(**asked()), _streamed(client))
    assert whole.content[0].text == streamed


async def _streamed(client: anthropic.AsyncAnthropic) -> str:
    async with client.messages.stream(**asked()) as stream:
        return "".join([text async for text in stream.text_stream])


def test_the_beta_client_has_the_same_answers(client):
    answer = client.beta.messages.create(**asked(), betas=["prompt-caching-2024-07-31"])
    assert "Paris" in answer.content[0].text


@pytest.mark.parametrize(
    ("fields", "error", "kind"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"extra_body": {"temperature": 2}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError, None),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, anthropic.BadRequestError, None),
        ({"messages": [{"role": "user", "content": "x" * 9_000_000}]}, anthropic.APIStatusError, "request_too_large"),
        ({"extra_headers": {"X-Request-Timeout": "soon"}}, anthropic.BadRequestError, "invalid_request_error"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_exceptions_of_the_client(client, fields, error, kind, stream):
    with pytest.raises(error) as caught:
        client.messages.create(**asked(stream=stream, **fields))
    assert caught.value.type == (kind or "invalid_request_error")
    assert caught.value.request_id == caught.value.body["request_id"]


def test_a_text_that_is_too_long_is_refused_in_the_words_clients_match(client):
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**asked(messages=[{"role": "user", "content": "word " * 3000}]))


def test_a_wrong_key_is_an_authentication_error(start, tmp_path):
    file = tmp_path / "keys"
    file.write_text("right\n")
    url = str(start("--api-key-file", str(file)).api.base_url)
    with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**asked())
        answer = client.with_options(api_key="right").messages.create(**asked(max_tokens=1))
    assert caught.value.type == "authentication_error"
    assert answer.stop_reason == "max_tokens"


def test_a_path_that_does_not_exist_is_a_not_found_error(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    assert caught.value.type == "not_found_error"


def test_a_reader_that_leaves_frees_its_blocks(server, client):
    question = [{"role": "user", "content": "Count to a thousand, one number a line."}]
    with client.messages.stream(**asked(messages=question, max_tokens=900)) as stream:
        next(iter(stream.text_stream))
    eventually(lambda: server.load()["blocks_pinned"] == 0)
