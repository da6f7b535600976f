"""Embeddings by the offline API on a model of a few thousand weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from octavo_inference import LLM
from octavo_inference.common.errors import RequestError

from .conftest import declare_pooling, matrices, write_hf

# Looked for and not imported: that takes seconds, in every worker that collects this module.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the reference backend needs torch"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("models") / "tiny", matrices(np.random.default_rng(3)))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), backend="reference", kv_memory="4Mi", max_running_requests=4)


def test_vectors_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["abc", "zyx", "a", "hello", "abc"]
    found = [output.embedding for output in llm.embed(prompts, use_tqdm=False)]
    assert (found[0] == found[4]).all()
    assert len({vector.tobytes() for vector in found}) == 4


def test_a_vector_has_length_1_unless_told_otherwise(llm: LLM) -> None:
    [unit], [raw] = (llm.embed("hello", normalize=normalize, use_tqdm=False) for normalize in (True, False))
    assert np.linalg.norm(unit.embedding) == pytest.approx(1, abs=1e-6)
    assert raw.embedding / np.linalg.norm(raw.embedding) == pytest.approx(unit.embedding, abs=1e-6)


def test_fewer_dimensions(llm: LLM) -> None:
    [whole], [short] = (llm.embed("hello", dimensions=n, normalize=False, use_tqdm=False) for n in (None, 5))
    assert (short.embedding == whole.embedding[:5]).all()


@pytest.mark.parametrize("dimensions", [0, -1, 10_000])
def test_impossible_dimensions_are_refused(llm: LLM, dimensions: int) -> None:
    with pytest.raises(RequestError, match=r"dimensions is .*, it must be from 1 to"):
        llm.embed("hello", dimensions=dimensions)


def test_the_default_is_the_last_token(llm: LLM) -> None:
    default, last, mean = (
        llm.embed("hello abc", pooling=pooling, use_tqdm=False)[0].embedding.tobytes()
        for pooling in (None, "last", "mean")
    )
    assert default == last != mean


def test_the_default_is_the_checkpoints(folder: Path, llm: LLM) -> None:
    declare_pooling(folder, {"pooling_mode_mean_tokens": True})
    declared = LLM(str(folder), backend="reference", kv_memory="4Mi", max_running_requests=4)
    [found], [mean] = (
        declared.embed("hello abc", use_tqdm=False),
        llm.embed("hello abc", pooling="mean", normalize=False),
    )
    assert (found.embedding == mean.embedding).all(), "these files have no Normalize module"


def test_scores_are_cosines(llm: LLM) -> None:
    first, second = (output.embedding for output in llm.embed(["abc", "zyx"], use_tqdm=False))
    assert llm.score("abc", ["zyx", "abc"], use_tqdm=False) == pytest.approx([first @ second, 1], abs=1e-6)


def test_a_failed_request_leaves_the_engine_free(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.embed(["abc", []], use_tqdm=False)
    assert not llm.engine.has_work
