"""POST /v1/completions: prompts in all four forms, choices by index, echo, log-probabilities."""

from __future__ import annotations

import json

import pytest

from octavo_inference.core.request import TokenLogprobs
from octavo_inference.server.openai.completions import mean_logprob
from octavo_inference.tokenizer.detokenizer import Delta

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


async def test_best_of_generates_more_than_it_returns(serve):
    async with serve() as server:
        response = await server.complete(
            prompt=["a", "b"], n=2, best_of=3, max_tokens=5, echo=True, return_token_ids=True
        )
        answer = response.json()
    assert [request.sampling.n for request in server.engine.seen] == [3, 3]
    assert [(choice["index"], choice["text"][0]) for choice in answer["choices"]] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * 3 * 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 1, "n": 2}, "best_of: 1 is less than n (2)."),
        ({"best_of": 2, "stream": True}, "best_of: 2 is not supported; supported: 1 (the value of n) with stream."),
        ({"best_of": 128, "prompt": ["a"] * 2}, "best_of: prompts times best_of are 256 sequences"),
    ],
)
async def test_best_of_is_bounded(serve, fields, message):
    async with serve() as server:
        response = await server.complete(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "best_of"
    assert error["message"].startswith(message)
    assert server.engine.seen == []


def test_the_mean_of_an_answer_counts_its_tokens():
    def answer(*values: float) -> Delta:
        return Delta("", [1] * len(values), [TokenLogprobs(value, 1, [], []) for value in values])

    assert mean_logprob(answer(-1.0, -3.0)) == -2.0
    assert mean_logprob(answer(-2.5)) < mean_logprob(answer(-1.0, -3.0, -1.0)) < mean_logprob(answer(-0.5))
    assert mean_logprob(answer()) < mean_logprob(answer(-1e9))
