"""Tokenizers built from GGUF metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import load_text

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
        ("tekken", "camelCase 1234 ok", ["camel", "Case", "Ġ", "1", "2", "3", "4", "Ġok"]),
        ("gpt-4o", "camelCase's 1234 ok", ["camel", "Case's", "Ġ", "123", "4", "Ġok"]),
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
    assert text.assets.eos_token == "<|end|>"


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


SPM = [("<unk>", 2), ("<s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]
SPM += [(piece, 1) for piece in ("\u2581a", "ab", "bc", "\u2581abc", "a", "b", "c", "\u2581")]


def write_spm(path: Path, tensors: dict[str, np.ndarray], pieces: list[tuple[str, int]], **keys: bool) -> Path:
    def extra(writer: gguf.GGUFWriter) -> None:
        for key in ("model", "tokens", "token_type"):
            del writer.kv_data[0][f"tokenizer.ggml.{key}"]
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece for piece, _ in pieces])
        writer.add_token_types([kind for _, kind in pieces])
        writer.add_token_scores([-float(i) for i in range(len(pieces))])
        writer.add_bos_token_id(1)
        for key, value in keys.items():
            getattr(writer, f"add_{key}")(value)

    rows = np.zeros((len(pieces), tensors["model.embed_tokens.weight"].shape[1]), np.float32)
    return write_gguf(path, tensors | {"model.embed_tokens.weight": rows}, extra=extra)


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        # The best piece merges first: "\u2581a" before "ab".
        ({}, "abc", ["<s>", "\u2581abc"]),
        ({}, "aab", ["<s>", "\u2581a", "ab"]),
        ({"add_space_prefix": False}, "abc a", ["<s>", "ab", "c", "\u2581a"]),
        ({"add_bos_token": False}, "b", ["\u2581", "b"]),
        ({"add_bos_token": False}, "b\n", ["\u2581", "b", "<0x0A>"]),
        ({}, "<s>a", ["<s>", "<s>", "\u2581a"]),
    ],
)
def test_sentencepiece_vocabularies_merge_by_score(
    tmp_path: Path, tensors: dict[str, np.ndarray], keys: dict[str, bool], text: str, expected: list[str]
) -> None:
    tokenizer = load_text(str(write_spm(tmp_path / "m.gguf", tensors, SPM, **keys))).tokenizer
    encoded = tokenizer.encode(text)
    assert encoded.tokens == expected
    assert tokenizer.decode(encoded.ids) == text.removeprefix("<s>")


def test_bytes_of_a_character_outside_the_vocabulary_come_back(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    tokenizer = load_text(str(write_spm(tmp_path / "m.gguf", tensors, SPM))).tokenizer
    assert tokenizer.encode("\u00e9").tokens == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("a\u00e9 \U0001f600").ids) == "a\u00e9 \U0001f600"


def test_sentencepiece_vocabularies_that_cannot_work_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    with pytest.raises(ModelError, match="neither an unknown token nor one for each byte"):
        load_text(str(write_spm(tmp_path / "a.gguf", tensors, [("a", 1), ("<s>", 3)]))).tokenizer.get_vocab_size()
    with pytest.raises(ModelError, match="a piece of 2000 characters"):
        load_text(str(write_spm(tmp_path / "b.gguf", tensors, [*SPM, ("x" * 2000, 1)]))).tokenizer.get_vocab_size()
