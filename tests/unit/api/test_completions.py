"""POST /v1/completions: prompts in all four forms, choices by index, echo, log-probabilities."""

from __future__ import annotations

import json

import pytest

ANSWER = "The capital of France is Paris. \N{CAT FACE} It lies on the Seine."


@pytest.mark.parametrize(("prompt", "count"), [("Once", 1), (["Once", "Twice"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)])
async def test_prompts_in_every_form(serve, prompt, count):
    async with serve() as server:
        answer = (await server.complete(prompt=prompt, max_tokens=40)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))
    assert {choice["text"] for choice in answer["choices"]} == {ANSWER}
    assert answer["usage"]["prompt_tokens"] == sum(len(request.tokens) for request in server.engine.seen)


async def test_choices_are_numbered_prompt_by_prompt(serve):
    async with serve() as server:
        answer = (await server.complete(prompt=["a", "b", "c"], n=2, echo=True)).json()
    assert [c["text"][0] for c in answer["choices"]] == ["a", "a", "b", "b", "c", "c"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3, 4, 5]


async def test_the_default_is_16_tokens(serve):
    async with serve(answer="one " * 100) as server:
        answer = (await server.complete()).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_logprobs_and_their_offsets(serve):
    async with serve() as server:
        choice = (await server.complete(logprobs=1, max_tokens=40)).json()["choices"][0]
    logprobs = choice["logprobs"]
    text = "".join(logprobs["tokens"])
    assert text.startswith("The capital of France")
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["tokens"])
    assert [text[offset : offset + 3] for offset in logprobs["text_offset"][:3]] == ["The", " ca", " of"]


async def test_echo_of_tokens_is_their_text(serve, tokenizer):
    async with serve() as server:
        answer = (await server.complete(prompt=tokenizer.encode("Once upon").ids, echo=True, max_tokens=40)).json()
    assert answer["choices"][0]["text"] == f"Once upon{ANSWER}"


async def test_stream_of_several_prompts(serve):
    async with serve() as server:
        text = (await server.complete(prompt=["a", "b"], stream=True, echo=True, max_tokens=40)).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    for index, head in enumerate("ab"):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(choice["text"] for choice in mine) == head + ANSWER
        assert sum(choice["finish_reason"] is not None for choice in mine) == 1
    assert text.endswith("data: [DONE]\n\n")
