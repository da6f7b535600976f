"""Tokenizers built from GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo_inference.errors import ModelError
from octavo_inference.model.load import load_text

from .conftest import TOKENS, write_gguf


def pieces(tmp_path: Path, tensors: dict[str, np.ndarray], pre: str, text: str) -> list[str]:
    tokenizer = load_text(str(write_gguf(tmp_path / f"{pre}.gguf", tensors, pre=pre))).tokenizer
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "It's 1234 ok", ["It", "'s", "Ġ1234", "Ġok"]),
        ("smollm", "It's 1234 ok", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġok"]),
        ("llama-bpe", "It'S 1234 ok", ["It", "'S", "Ġ", "123", "4", "Ġok"]),
        ("qwen2", "It'S 1234 ok", ["It", "'S", "Ġ", "1", "2", "3", "4", "Ġok"]),
        ("llama-bpe", "a\n\n  b  c", ["a", "ĊĊ", "Ġ", "Ġb", "Ġ", "Ġc"]),
        ("qwen2", "e\u0301", ["Ã©"]),  # composed first
    ],
)
def test_text_is_split_as_the_models_merges_were_learned(
    tmp_path: Path, tensors: dict[str, np.ndarray], pre: str, text: str, expected: list[str]
) -> None:
    assert pieces(tmp_path, tensors, pre, text) == expected


def test_merges_and_special_tokens(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    text = load_text(str(write_gguf(tmp_path / "m.gguf", tensors)))
    ids = text.tokenizer.encode("abcab<|end|>ba").ids
    assert [TOKENS[i] for i in ids] == ["abc", "ab", "<|end|>", "b", "a"]
    assert text.tokenizer.decode(ids) == "abcabba"
    assert text.tokenizer.decode(ids, skip_special_tokens=False) == "abcab<|end|>ba"
    assert text.config.eos_token_ids == (0,)
    assert text.words.eos_token == "<|end|>"


@pytest.mark.parametrize(
    ("pre", "add", "starts"), [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True)]
)
def test_the_beginning_token_is_added_when_the_file_says_so(
    tmp_path: Path, tensors: dict[str, np.ndarray], pre: str, add: bool | None, starts: bool
) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(0)
        if add is not None:
            writer.add_add_bos_token(add)

    tokenizer = load_text(str(write_gguf(tmp_path / "m.gguf", tensors, pre=pre, extra=extra))).tokenizer
    assert (tokenizer.encode("a").ids[0] == 0) is starts
    assert tokenizer.encode("a", add_special_tokens=False).ids == [1]


def test_an_unknown_splitting_rule_is_refused_unless_a_tokenizer_lies_beside(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, pre="martian")
    with pytest.raises(ModelError, match="pre-tokenizer 'martian' is not supported; put the model"):
        _ = load_text(str(path)).tokenizer
    load_text(str(write_gguf(tmp_path / "ok.gguf", tensors))).tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_text(str(path)).tokenizer.get_vocab_size() == len(TOKENS)
