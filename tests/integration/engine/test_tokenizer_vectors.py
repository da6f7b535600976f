"""Tokenizers of GGUF files against llama.cpp's own test vectors: 15 vocabularies, each with at least 46 texts.

Four more vocabularies have no vectors. tokens_by_llama_cpp.json has the tokens that llama.cpp (llama-cpp-python 0.3.36)
gives there to the texts of `llama-bpe`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.llama_cpp import vectors, vocabularies
from tokenizers import Tokenizer

from octavo_inference.checkpoints.gguf_header import read_header
from octavo_inference.tokenizer.detokenizer import TokenDecoder
from octavo_inference.tokenizer.tokenizer import tokenizer_from_gguf
from toolbox.errors import ToolError

WITH_VECTORS = {
    **dict.fromkeys(("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2"), 46),
    **dict.fromkeys(("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "refact", "starcoder"), 46),
    "qwen35": 50,
}
OTHERS: dict[str, list[list[int]]] = json.loads((Path(__file__).parent / "tokens_by_llama_cpp.json").read_text())
# These normalize a text, so another one comes back.
NORMALIZING = {"bert-bge", "nomic-bert-moe"}
EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence" / "tokenizers.md"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return vocabularies()
    except ToolError as error:
        pytest.skip(f"no vocabularies of llama.cpp: {error}")


def load(folder: Path, name: str) -> Tokenizer:
    return tokenizer_from_gguf(read_header(folder / f"ggml-vocab-{name}.gguf"))


def cases(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    if name in OTHERS:
        texts = [text for text, _ in vectors(folder / "ggml-vocab-llama-bpe.gguf")]
        return list(zip(texts, OTHERS[name], strict=True))
    return vectors(folder / f"ggml-vocab-{name}.gguf")


@pytest.mark.parametrize("name", [*WITH_VECTORS, *OTHERS])
def test_tokens_and_text_are_those_of_the_vectors(folder: Path, name: str) -> None:
    tokenizer, expected = load(folder, name), cases(folder, name)
    assert len(expected) == WITH_VECTORS.get(name, 46)
    for text, ids in expected:
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        if name not in NORMALIZING:
            assert whole == text
        decoder = TokenDecoder(tokenizer, skip_special_tokens=False)
        assert "".join([*map(decoder.push, ids), decoder.flush()]) == whole


def test_every_vocabulary_is_tested(folder: Path) -> None:
    names = {path.name.removeprefix("ggml-vocab-").removesuffix(".gguf") for path in folder.glob("*.gguf")}
    assert names == WITH_VECTORS.keys() | OTHERS.keys()


def test_the_list_in_the_documentation_names_every_vocabulary() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (\d+) of (\d+) \|$", EVIDENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: int(passed) for name, passed, _ in rows} == WITH_VECTORS | dict.fromkeys(OTHERS, 46)
    assert all(passed == total for _, passed, total in rows)
