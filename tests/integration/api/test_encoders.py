"""A real server with an encoder, and one with a cross-encoder: what it computes is what the library computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.api.conftest import Start
from tests.integration.engine.encoders import CROSS, ENCODERS, save_words, words, written

from octavo_inference import LLM
from octavo_protocol.names import PATH_SLEEP, PATH_WAKE_UP

TEXTS = [words(length, seed) for seed, length in enumerate((50, 3, 28))]
SIZES = ("--max-model-len", "95", "--dtype", "float32", "--served-model-name", "m")


def test_a_server_of_an_encoder(start: Start, tmp_path: Path) -> None:
    written(ENCODERS["modernbert"], tmp_path)
    save_words(tmp_path, typed=False)
    server = start("--model", str(tmp_path), *SIZES)
    [model] = server.api.get("/v1/models").json()["data"]
    assert model["task"] == "embed"
    answer = server.api.post("/v1/embeddings", json={"model": "m", "input": TEXTS}).json()
    expected = LLM(str(tmp_path), dtype="float32", max_model_len=95).embed(TEXTS, use_tqdm=False)
    for entry, one in zip(answer["data"], expected, strict=True):
        assert entry["embedding"] == pytest.approx(one.embedding.tolist(), abs=1e-6)
    response = server.api.post(
        "/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    )
    assert response.status_code == 400
    assert "generates no text; use /v1/embeddings" in response.json()["error"]["message"]
    # It gives its memory back and loads again with the same sizes.
    server.admin.post(PATH_SLEEP).raise_for_status()
    server.admin.post(PATH_WAKE_UP).raise_for_status()
    assert server.api.post("/v1/embeddings", json={"model": "m", "input": TEXTS}).json()["data"] == answer["data"]


def test_a_server_of_a_cross_encoder(start: Start, tmp_path: Path) -> None:
    written(CROSS["bert"], tmp_path)
    save_words(tmp_path, typed=True)
    server = start("--model", str(tmp_path), *SIZES)
    query = words(12, 9)
    expected = LLM(str(tmp_path), dtype="float32", max_model_len=95).score(query, TEXTS, use_tqdm=False)
    results = server.api.post("/v1/rerank", json={"model": "m", "query": query, "documents": TEXTS}).json()["results"]
    assert {result["index"]: result["relevance_score"] for result in results} == pytest.approx(
        dict(enumerate(expected))
    )
    assert [result["index"] for result in results] == sorted(range(3), key=lambda index: -expected[index])
