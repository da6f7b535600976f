"""Models without text: /score and /rerank of a cross-encoder, and what embedding models and rerankers refuse.

The fake engine's score of a pair is 1 + its first token % 7.
"""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing

TEXTS = ["Paris is the capital of France.", "a cat", "dogs bark"]


@pytest.fixture
def paired(tokenizer):
    """The tokenizer with a template of pairs, whose second texts have the second type."""
    end = tokenizer.token_to_id("<|im_end|>")
    before = tokenizer.post_processor
    tokenizer.post_processor = TemplateProcessing(
        single="$A <|im_end|>", pair="$A <|im_end|> $B:1 <|im_end|>:1", special_tokens=[("<|im_end|>", end)]
    )
    yield tokenizer
    tokenizer.post_processor = before


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


async def post(server, path, **fields):
    return await server.api.post(path, json={"model": "m"} | fields)


async def test_a_pair_is_one_prompt_and_its_score_the_models(serve, paired):
    end = paired.token_to_id("<|im_end|>")
    async with serve(task="score", hidden_size=1) as server:
        answer = (await post(server, "/v1/score", text_1=TEXTS, text_2=TEXTS[::-1])).json()
    expected = [[*ids(paired, a), end, *ids(paired, b), end] for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    assert [request.tokens for request in server.engine.seen] == expected
    assert [request.second_text for request in server.engine.seen] == [len(ids(paired, a)) + 1 for a in TEXTS]
    assert {request.pooling for request in server.engine.seen} == {"cls"}
    assert [entry["score"] for entry in answer["data"]] == [1 + tokens[0] % 7 for tokens in expected]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_documents_are_ranked(serve, paired):
    async with serve(task="score", hidden_size=1) as server:
        results = (await post(server, "/v1/rerank", query="Paris", documents=TEXTS)).json()["results"]
    assert [result["index"] for result in results] == [0, 1, 2], "equal scores keep the order"
    assert {result["relevance_score"] for result in results} == {1 + ids(paired, "Paris")[0] % 7}


@pytest.mark.parametrize(
    ("fields", "query", "document"),
    [
        ({"max_tokens_per_doc": 2}, slice(None), slice(2)),
        ({"truncate_prompt_tokens": 1}, slice(-1, None), slice(-1, None)),
    ],
)
async def test_limits_of_tokens(serve, paired, fields, query, document):
    end = paired.token_to_id("<|im_end|>")
    async with serve(task="score", hidden_size=1) as server:
        await post(server, "/rerank", query="Paris is", documents=[TEXTS[0]], **fields)
    [request] = server.engine.seen
    assert request.tokens == [*ids(paired, "Paris is")[query], end, *ids(paired, TEXTS[0])[document], end]


async def test_a_document_is_cut_to_the_context_on_request(serve, paired):
    async with serve(task="score", hidden_size=1) as server:
        refused = await post(server, "/rerank", query="Paris", documents=["word " * 600])
        await post(server, "/rerank", query="Paris", documents=["word " * 600], truncate_prompt_tokens=-1)
    assert refused.json()["error"]["param"] == "documents"
    assert [len(request.tokens) for request in server.engine.seen] == [512]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
    ],
)
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("embed", "gives embeddings and generates no text; use /v1/embeddings, /v1/rerank and /v1/score"),
        ("score", "scores pairs of texts and generates no text; use /v1/rerank and /v1/score"),
    ],
)
async def test_requests_for_text_are_refused(serve, path, fields, task, words):
    async with serve(task=task) as server:
        response = await post(server, path, **fields)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert server.engine.seen == []


async def test_a_reranker_gives_no_embeddings(serve):
    async with serve(task="score", hidden_size=1) as server:
        response = await post(server, "/v1/embeddings", input="Hi")
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "model: m scores pairs of texts and gives no embeddings; use /v1/rerank and /v1/score."
    )


async def test_embeddings_are_pooled_as_the_model_says_and_normalized_as_its_files_do(serve):
    async with serve(task="embed", normalized=False) as server:
        answer = (await post(server, "/v1/embeddings", input=[7, 8])).json()
    assert answer["data"][0]["embedding"] == [1, 2, 2, 2]
    assert server.engine.seen[0].pooling == "cls"


@pytest.mark.parametrize("task", ["generate", "embed", "score"])
async def test_the_list_of_models_says_what_a_model_computes(serve, task):
    async with serve(task=task) as server:
        [model, _] = (await server.api.get("/v1/models")).json()["data"]
    assert model["task"] == task
