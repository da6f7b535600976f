"""Embeddings, scores and ranks of a real server with real weights, by OpenAI's own client and by plain HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from octavo_inference import LLM, SamplingParams
from octavo_inference.model_loader import load_text
from octavo_inference.server.rerank.judgement import INSTRUCTION, SYSTEM
from octavo_inference.tokenizer.chat_template import ChatTemplate

openai = pytest.importorskip("openai", reason="the client whose answers these are")

TEXTS = [
    "The capital of France is Paris.",
    "Water",
    "In a small town by the sea there lived a clockmaker who repaired every clock but his own. " * 6,
]
SIZES = {"max_model_len": 1024, "kv_memory": "64Mi", "prefix_caching": False}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{str(server.api.base_url).rstrip('/')}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llm():
    return LLM("smollm2", **SIZES)


def vectors(response) -> np.ndarray:
    return np.array([entry.embedding for entry in response.data], np.float32)


def test_the_client_reads_the_vectors_that_the_library_computes(client, llm):
    response = client.embeddings.create(model="smollm2", input=TEXTS)
    expected = np.array([output.embedding for output in llm.embed(TEXTS, use_tqdm=False)])
    assert (vectors(response) == expected).all()
    assert [entry.index for entry in response.data] == [0, 1, 2]
    assert response.usage.prompt_tokens == sum(len(llm.tokenizer.encode(text).ids) for text in TEXTS)


def test_vectors_have_length_1(client):
    found = vectors(client.embeddings.create(model="smollm2", input=TEXTS, dimensions=64))
    assert found.shape == (3, 64)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 1], abs=1e-6)


def test_numbers_and_base64_are_the_same_vector(client):
    as_numbers = client.embeddings.create(model="smollm2", input=TEXTS[0], encoding_format="float")
    as_base64 = client.embeddings.create(model="smollm2", input=TEXTS[0])
    assert (vectors(as_numbers) == vectors(as_base64)).all()


def test_tokens_are_embedded_like_their_text(client, llm):
    tokens = [llm.tokenizer.encode(text).ids for text in TEXTS]
    by_text = client.embeddings.create(model="smollm2", input=TEXTS)
    assert (vectors(client.embeddings.create(model="smollm2", input=tokens)) == vectors(by_text)).all()
    assert (vectors(client.embeddings.create(model="smollm2", input=tokens[0])) == vectors(by_text)[:1]).all()


def test_a_vector_is_the_same_beside_answers(client, server):
    alone = vectors(client.embeddings.create(model="smollm2", input=TEXTS))
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.chat, f"Tell me about number {i}.") for i in range(4)]
        mixed = [pool.submit(client.embeddings.create, model="smollm2", input=TEXTS) for _ in range(4)]
        assert all((vectors(future.result()) == alone).all() for future in mixed)
        assert all(future.result()["choices"][0]["message"]["content"] for future in answers)


def test_more_inputs_than_rows_are_embedded_in_order(client):
    inputs = [f"number {i % 50}" for i in range(200)]
    found = vectors(client.embeddings.create(model="smollm2", input=inputs))
    assert (found[:50] == found[50:100]).all()
    assert len({vector.tobytes() for vector in found}) == 50


def test_too_long_an_input_is_refused_with_the_numbers(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as caught:
        client.embeddings.create(model="smollm2", input="word " * 2000)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_a_cut_input_is_embedded(client, llm):
    tokens = llm.tokenizer.encode("word " * 2000).ids
    cut = client.embeddings.create(model="smollm2", input="word " * 2000, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 1024
    assert (vectors(cut) == vectors(client.embeddings.create(model="smollm2", input=tokens[-1024:]))).all()


def test_the_counters_of_an_embedding(client, counters):
    before = counters()
    usage = client.embeddings.create(model="smollm2", input=TEXTS).usage
    after = counters()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["octavo:prompt_tokens_total"] == usage.prompt_tokens
    assert grown["octavo:generation_tokens_total"] == 0
    assert grown["octavo:e2e_request_latency_seconds_count"] == 3
    assert grown["octavo:time_to_first_token_seconds_count"] == 0


def test_documents_are_ranked_by_the_similarity_of_their_embeddings(server, llm):
    documents = ["The cat sat on the mat.", "Paris is the capital of France.", "Python has lists."]
    body = {"model": "smollm2", "query": "Name the capital of France.", "documents": documents}
    results = server.api.post("/v1/rerank", json=body).json()["results"]
    expected = llm.score(body["query"], documents, use_tqdm=False)
    assert [result["index"] for result in results] == sorted(range(3), key=lambda i: -expected[i])
    assert results[0]["document"]["text"] == "Paris is the capital of France."
    scores = server.api.post("/score", json={"model": "smollm2", "text_1": body["query"], "text_2": documents}).json()[
        "data"
    ]
    assert [entry["score"] for entry in scores] == pytest.approx(expected, abs=1e-5)


def test_a_server_with_mean_pooling(start, llm):
    server = start("--pooling", "mean")
    response = server.api.post("/v1/embeddings", json={"model": "smollm2", "input": TEXTS}).json()
    expected = np.array([output.embedding for output in llm.embed(TEXTS, pooling="mean", use_tqdm=False)])
    assert (np.array([entry["embedding"] for entry in response["data"]], np.float32) == expected).all()


def test_a_server_that_ranks_by_the_models_own_answer(start, llm):
    documents = ["The cat sat on the mat.", "Paris is the capital of France."]
    server = start("--relevance", "answer")
    body = {"model": "smollm2", "query": "Name the capital of France.", "documents": documents}
    results = server.api.post("/rerank", json=body).json()["results"]
    text = load_text("smollm2")
    template = ChatTemplate(text.chat_template, text.tokenizer)
    yes, no = (text.tokenizer.encode(word).ids[0] for word in ("yes", "no"))
    asked = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=(no, yes))
    for result in results:
        content = f"<Instruct>: {INSTRUCTION}\n<Query>: {body['query']}\n<Document>: {documents[result['index']]}"
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        [output] = llm.generate([template.tokens(messages)], asked, use_tqdm=False)
        of_no, of_yes = np.exp(output.outputs[0].logprobs[0].top_logprobs)
        assert result["relevance_score"] == pytest.approx(of_yes / (of_yes + of_no), rel=1e-5)
    assert results[0]["relevance_score"] >= results[1]["relevance_score"] > 0
