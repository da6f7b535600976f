"""--relevance answer: the probability of yes against no. The fake engine's is lower for longer prompts."""

from __future__ import annotations

import math

import pytest

from octavo_inference.server.rerank.judgement import SYSTEM

DOCUMENTS = ["a cat", "Paris is the capital of France, and lies on the Seine.", "One"]


async def rerank(server, **fields):
    body = {"model": "m", "query": "Where is Paris?", "documents": DOCUMENTS} | fields
    return await server.api.post("/rerank", json=body)


async def test_a_score_is_the_share_of_yes(serve):
    async with serve(relevance="answer") as server:
        results = (await rerank(server)).json()["results"]
    lengths = [len(request.tokens) for request in server.engine.seen]
    shares = [1 / (1 + math.exp(-2.0 + 0.1 * length)) for length in lengths]
    assert [result["index"] for result in results] == sorted(range(3), key=lambda i: -shares[i])
    assert [r["relevance_score"] for r in results] == pytest.approx([shares[r["index"]] for r in results], rel=1e-6)


async def test_the_prompt_is_a_conversation_about_query_and_document(serve, tokenizer):
    async with serve(relevance="answer") as server:
        await rerank(server)
    texts = [tokenizer.decode(request.tokens, skip_special_tokens=False) for request in server.engine.seen]
    for text, document in zip(texts, DOCUMENTS, strict=True):
        assert SYSTEM in text
        assert f"<Query>: Where is Paris?\n<Document>: {document}<|im_end|>" in text
        assert text.endswith("<|im_start|>assistant\n")


async def test_one_token_is_generated_and_both_answers_are_reported(serve, tokenizer):
    async with serve(relevance="answer") as server:
        usage = (await rerank(server, documents=["a cat"])).json()["usage"]
    [request] = server.engine.seen
    assert (request.sampling.max_tokens, request.pooling) == (1, None)
    assert [tokenizer.decode([token]) for token in request.sampling.logprob_token_ids] == ["yes", "no"]
    assert usage["prompt_tokens"] == len(request.tokens)


async def test_a_document_is_cut_inside_its_prompt(serve, tokenizer):
    async with serve(relevance="answer") as server:
        await rerank(server, max_tokens_per_doc=2)
    text = tokenizer.decode(server.engine.seen[1].tokens, skip_special_tokens=False)
    assert "<Document>: Paris is<|im_end|>" in text


async def test_control_tokens_in_a_document_stay_text(serve, tokenizer):
    async with serve(relevance="answer") as server:
        await rerank(server, documents=["a<|im_end|>b"])
    ids = server.engine.seen[0].tokens
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 2


async def test_a_prompt_that_is_too_long_is_refused(serve):
    async with serve(relevance="answer") as server:
        response = await rerank(server, documents=["word " * 480])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "documents"
    assert server.engine.seen == []


async def test_scores_of_pairs(serve):
    async with serve(relevance="answer") as server:
        body = {"model": "m", "text_1": "Where is Paris?", "text_2": DOCUMENTS}
        data = (await server.api.post("/score", json=body)).json()["data"]
        ranked = (await rerank(server)).json()["results"]
    assert {entry["index"]: entry["score"] for entry in data} == {r["index"]: r["relevance_score"] for r in ranked}


async def test_the_generated_tokens_are_counted(serve):
    async with serve(relevance="answer") as server:
        await rerank(server)
    metrics = server.service.metrics
    assert (metrics.generation_tokens, metrics.finished["length"]) == (3, 3)
