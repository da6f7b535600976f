"""POST /score and /rerank: shapes, order, bounds. The fake engine's vectors are (1 + first token % 7, 2, 2, length)."""

from __future__ import annotations

import math

import pytest

from octavo_inference.server.text_pool import TextPool


def vector(tokens: list[int]) -> list[float]:
    return [1 + tokens[0] % 7, 2, 2, len(tokens)]


def cosine(one: list[int], other: list[int]) -> float:
    first, second = vector(one), vector(other)
    return sum(a * b for a, b in zip(first, second, strict=True)) / (math.hypot(*first) * math.hypot(*second))


DOCUMENTS = ["a cat", "Paris is the capital of France, and lies on the Seine.", "dogs bark", "One"]


async def post(server, path, **fields):
    return await server.api.post(path, json={"model": "m"} | fields)


@pytest.fixture
def ids(tokenizer):
    return lambda text: tokenizer.encode(text).ids


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_one_text_against_several(serve, ids, path):
    async with serve() as server:
        answer = (await post(server, path, text_1="Paris", text_2=DOCUMENTS)).json()
    expected = [cosine(ids("Paris"), ids(text)) for text in DOCUMENTS]
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected, rel=1e-5)
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    assert {entry["object"] for entry in answer["data"]} == {"score"}
    assert (answer["object"], answer["model"]) == ("list", "m")
    assert answer["usage"]["prompt_tokens"] == sum(len(ids(text)) for text in ["Paris", *DOCUMENTS])


async def test_pairs_of_two_lists(serve, ids):
    async with serve() as server:
        answer = (await post(server, "/score", text_1=["Paris", "Rome"], text_2=["a cat", "dogs bark"])).json()
    expected = [cosine(ids("Paris"), ids("a cat")), cosine(ids("Rome"), ids("dogs bark"))]
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("relevance", "steps"), [("embedding", 5), ("answer", 4)])
async def test_each_text_or_pair_is_a_step_of_its_own(serve, relevance, steps, monkeypatch):
    async with serve(relevance=relevance) as server:
        counts = []
        run = server.service.texts.run

        async def counted(client, given):
            given = list(given)
            counts.append(len(given))
            return await run(client, given)

        monkeypatch.setattr(TextPool, "run", lambda _, client, given: counted(client, given))
        await post(server, "/rerank", query="Paris", documents=DOCUMENTS)
    assert max(counts) == steps, "so requests of other clients get their turn in between"


async def test_a_text_in_several_pairs_is_computed_once(serve):
    async with serve() as server:
        await post(server, "/score", text_1="Paris", text_2=["dogs", "a cat", "a cat"])
    assert len(server.engine.seen) == 3


async def test_a_text_is_as_similar_to_itself_as_can_be(serve):
    async with serve() as server:
        answer = (await post(server, "/score", text_1="Paris", text_2="Paris")).json()
    assert answer["data"][0]["score"] == pytest.approx(1, abs=1e-6)
    assert answer["data"][0]["score"] <= 1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_come_by_relevance(serve, ids, path):
    async with serve() as server:
        answer = (await post(server, path, query="Paris", documents=DOCUMENTS)).json()
    scores = [cosine(ids("Paris"), ids(text)) for text in DOCUMENTS]
    order = sorted(range(4), key=lambda i: -scores[i])
    assert [result["index"] for result in answer["results"]] == order
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([scores[i] for i in order], rel=1e-5)
    assert [result["document"] for result in answer["results"]] == [{"text": DOCUMENTS[i]} for i in order]
    assert answer["usage"]["total_tokens"] == sum(len(ids(text)) for text in ["Paris", *DOCUMENTS])
    assert set(answer) == {"id", "model", "results", "usage"}


async def test_only_the_best_and_without_their_texts(serve):
    async with serve() as server:
        whole = (await post(server, "/rerank", query="Paris", documents=DOCUMENTS)).json()["results"]
        best = (
            await post(server, "/rerank", query="Paris", documents=DOCUMENTS, top_n=2, return_documents=False)
        ).json()["results"]
    assert best == [{key: result[key] for key in ("index", "relevance_score")} for result in whole[:2]]


async def test_equal_documents_keep_their_order(serve):
    async with serve() as server:
        answer = (await post(server, "/rerank", query="Paris", documents=["a cat"] * 3)).json()
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]


async def test_documents_as_objects(serve):
    async with serve() as server:
        answer = (await post(server, "/rerank", query="Paris", documents=[{"text": "a cat"}, "dogs"])).json()
    assert {result["document"]["text"] for result in answer["results"]} == {"a cat", "dogs"}


async def test_the_first_tokens_of_each_document(serve, ids):
    async with serve() as server:
        await post(server, "/rerank", query="Paris is the capital", documents=DOCUMENTS, max_tokens_per_doc=2)
    assert [request.tokens for request in server.engine.seen] == [
        ids("Paris is the capital"),
        *(ids(text)[:2] for text in DOCUMENTS),
    ]


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2", "1 texts for 2 in text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2", "1"),
        ("/score", {"text_1": "", "text_2": "b"}, "text_1", "empty"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 1025}, "text_2", "1024"),
        ("/score", {"text_1": "a"}, "text_2", "text_2"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "1"),
        ("/rerank", {"query": "", "documents": ["b"]}, "query", "empty"),
        ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents", "empty"),
        ("/rerank", {"query": "a", "documents": ["b"] * 1025}, "documents", "1024"),
        ("/rerank", {"query": "a", "documents": [{"text": "b", "image": "c"}]}, "documents", "image"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "1"),
        ("/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["c"]}, "rank_fields", "rank_fields"),
        ("/rerank", {"query": "a", "documents": ["word " * 600]}, "documents", "maximum context length"),
    ],
)
async def test_what_is_refused_names_field_and_limit(serve, path, fields, param, words):
    async with serve() as server:
        response = await post(server, path, **fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"].startswith(param)
    assert words in error["message"]
    assert server.engine.seen == []
