"""Each kind of vocabulary in GGUF files: pieces, special tokens, and the text that comes back."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tokenizers import Tokenizer, normalizers

from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.charsmap import check_charsmap
from octavo_inference.tokenizer.detokenizer import TokenDecoder, token_bytes
from octavo_inference.tokenizer.encoding import plain_tokenizer

from .vocabularies import BYTE, BYTES, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, load_vocabulary

LETTERS = [(piece, NORMAL) for piece in (*"abcdeéx12,'", "ab")]
MERGES = ["a b"]
BERT = [("[PAD]", CONTROL), ("[UNK]", CONTROL), ("[CLS]", CONTROL), ("[SEP]", CONTROL), ("[MASK]", CONTROL)]
BERT += [(f"\u2581{piece}", NORMAL) for piece in ("un", "able", "a", ",", "x", "漢", "字", "É", "é", "e", "[", "]")]
BERT += [(piece, NORMAL) for piece in ("able", "a", "b", "e")]
BERT_KEYS = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}

# "ab c" is better than its parts, "bc" is worse.
UNIGRAM = [("<pad>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<unk>", UNKNOWN, 0.0), ("<x>", USER_DEFINED, 0.0)]
UNIGRAM += [("\u2581", NORMAL, -2.0), ("\u2581a", NORMAL, -2.5), ("ab", NORMAL, -3.0), ("a", NORMAL, -4.0)]
UNIGRAM += [("b", NORMAL, -4.0), ("bc", NORMAL, -9.0), ("c", NORMAL, -4.0), ("</s", NORMAL, -5.0), (">", NORMAL, -5.0)]

GEMMA = [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", UNKNOWN), *BYTES]
GEMMA += [("<|turn>", CONTROL), ("<turn|>", CONTROL), ("<tool>", USER_DEFINED), ("</s>", NORMAL)]
GEMMA += [(piece, NORMAL) for piece in ("\u2581", "a", "b", "\u2581a", "ab", "\u2581\u2581", "\n", "\n\n")]
GEMMA_MERGES = ["\u2581 \u2581", "\u2581 a", "a b", "\n \n"]
GEMMA_KEYS = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3}


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    """The tokens of `text` as the vocabulary has them: `Encoding.tokens` has the text of unknown ones."""
    return [tokenizer.id_to_token(token) for token in tokenizer.encode(text).ids]


def unigram(path: Path, extra: list[tuple[str, int, float]] = [], **keys: Any) -> Tokenizer:  # noqa: B006
    entries = [*UNIGRAM, *extra]
    return load_vocabulary(path, "t5", [entry[:2] for entry in entries], scores=[entry[2] for entry in entries], **keys)


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        ({}, "unable  A", ["[CLS]", "un", "##able", "a", "[SEP]"]),
        ({}, "x,漢字", ["[CLS]", "x", ",", "漢", "字", "[SEP]"]),
        ({}, "É e\u0301", ["[CLS]", "e", "e", "[SEP]"]),
        ({"normalizer.strip_accents": False}, "É", ["[CLS]", "é", "[SEP]"]),
        ({"normalizer.lowercase": False}, "É", ["[CLS]", "É", "[SEP]"]),
        (
            {"normalizer.lowercase": False, "normalizer.strip_accents": True},
            "É A",
            ["[CLS]", "[UNK]", "[UNK]", "[SEP]"],
        ),
        # One unknown character makes the whole word unknown.
        ({}, "unz a", ["[CLS]", "[UNK]", "a", "[SEP]"]),
        ({}, "a [MASK] x", ["[CLS]", "a", "[MASK]", "x", "[SEP]"]),
        # llama.cpp ignores these flags for this kind.
        ({"add_bos_token": False, "add_eos_token": False}, "a", ["[CLS]", "a", "[SEP]"]),
    ],
)
def test_bert_words_are_cut_into_the_longest_pieces(
    tmp_path: Path, keys: dict[str, bool], text: str, expected: list[str]
) -> None:
    assert load_vocabulary(tmp_path, "bert", BERT, **BERT_KEYS, **keys).encode(text).tokens == expected


def test_bert_pairs_have_types(tmp_path: Path) -> None:
    pair = load_vocabulary(tmp_path, "bert", BERT, **BERT_KEYS).encode("a", "x")
    assert pair.tokens == ["[CLS]", "a", "[SEP]", "x", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]


def test_bert_text_comes_back_in_words(tmp_path: Path) -> None:
    tokenizer = load_vocabulary(tmp_path, "bert", BERT, **BERT_KEYS)
    ids = tokenizer.encode("unable, a").ids
    assert tokenizer.decode(ids) == "unable, a"
    assert [token_bytes(tokenizer, token) for token in ids[1:3]] == [b" un", b"able"]


def test_control_tokens_in_a_clients_text_stay_text(tmp_path: Path) -> None:
    kinds = {
        "bert": load_vocabulary(tmp_path, "bert", BERT, **BERT_KEYS),
        "t5": unigram(tmp_path, [("<0x41>", BYTE, 0.0), ("s", NORMAL, -5.0)], unknown_token_id=2),
        "gemma4": load_vocabulary(tmp_path, "gemma4", GEMMA, GEMMA_MERGES, **GEMMA_KEYS),
    }
    for kind, tokenizer in kinds.items():
        added = tokenizer.get_added_tokens_decoder()
        special = {token for token, entry in added.items() if entry.special and entry.content not in ("<unk>", "[UNK]")}
        text = " ".join(entry.content for entry in added.values()) + "<0x41>"
        assert special, kind
        assert special <= set(tokenizer.encode(text, add_special_tokens=False).ids), kind
        plain = plain_tokenizer(tokenizer).encode(text, add_special_tokens=False)
        assert not special & set(plain.ids), kind
        assert "<0x41>" not in plain.tokens, kind


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        ({}, "ab", ["\u2581", "ab", "</s>"]),
        ({}, "abc a", ["\u2581", "ab", "c", "\u2581a", "</s>"]),
        ({}, "azzb", ["\u2581a", "<unk>", "b", "</s>"]),
        ({}, "a  b", ["\u2581a", "\u2581", "\u2581", "b", "</s>"]),
        ({"remove_extra_whitespaces": True}, "  a   b ", ["\u2581a", "\u2581", "b", "</s>"]),
        ({"remove_extra_whitespaces": True}, "   ", ["</s>"]),
        ({"add_space_prefix": False}, "a a", ["a", "\u2581a", "</s>"]),
        ({"add_eos_token": False}, "a", ["\u2581a"]),
        ({"add_bos_token": True, "bos_token_id": 0}, "a", ["<pad>", "\u2581a", "</s>"]),
        ({}, "a<x>b", ["\u2581a", "<x>", "\u2581", "b", "</s>"]),
        ({}, "a</s>", ["\u2581a", "</s>", "</s>"]),
    ],
)
def test_unigrams_take_the_most_probable_pieces(
    tmp_path: Path, keys: dict[str, Any], text: str, expected: list[str]
) -> None:
    tokenizer = unigram(tmp_path, unknown_token_id=2, **keys)
    assert names(tokenizer, text) == expected


def test_unigrams_fall_back_to_bytes_that_the_vocabulary_has(tmp_path: Path) -> None:
    tokenizer = unigram(tmp_path, [(byte, kind, 0.0) for byte, kind in BYTES], unknown_token_id=2)
    encoded = tokenizer.encode("a é")
    assert encoded.tokens == ["\u2581a", "\u2581", "<0xC3>", "<0xA9>", "</s>"]
    assert tokenizer.decode(encoded.ids) == "a é"


def charsmap(**replaced: str) -> bytes:
    """A table of single bytes: `charsmap(A="a")` writes A as a. Values are in units 1, 2, 3, ..."""
    units, replacements = [0] * 512, b""
    units[0] = 256 << 10  # the root's children are at 256 ^ byte
    for value, (byte, text) in enumerate(replaced.items(), 1):
        child = 256 ^ ord(byte)
        units[child] = ord(byte) | 1 << 8 | (child ^ value) << 10
        units[value] = 1 << 31 | len(replacements)
        replacements += text.encode() + b"\0"
    return struct.pack("<I512I", 4 * len(units), *units) + replacements


def test_unigrams_replace_characters_by_the_files_table(tmp_path: Path) -> None:
    table = charsmap(_="", A="a", B="bc")
    tokenizer = unigram(tmp_path, unknown_token_id=2, precompiled_charsmap=table)
    assert tokenizer.encode("AB").tokens == unigram(tmp_path, unknown_token_id=2).encode("abc").tokens


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"", "a trie of 0 bytes in 0"),
        (b"\x08\0\0\0abcd", "a trie of 8 bytes in 8"),
        (b"\x03\0\0\0abc", "a trie of 3 bytes in 7"),
        (struct.pack("<I256I", 1024, 256 << 10, *[0] * 255), "node 256 is outside its trie of 256 units"),
        (struct.pack("<I256I", 1024, *[0] * 256) + b"\xff\0", "its replacements are not UTF-8"),
        (charsmap(A="a")[: 4 + 4 * 512], "replacement 0 is outside its 0 bytes"),
        (
            charsmap(_="é", A="a").replace(struct.pack("<I", 1 << 31), struct.pack("<I", 1 << 31 | 1)),
            "replacement 1 is",
        ),
    ],
)
def test_tables_that_lead_out_of_themselves_are_refused(tmp_path: Path, table: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=f"precompiled_charsmap is damaged: {message}"):
        check_charsmap(table, tmp_path)


# Any, values, and children of the root with a value.
UNITS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 10).map(lambda value: 1 << 31 | value),
    st.integers(0, 600).map(lambda offset: offset << 10 | 1 << 8 | ord("A")),
)


@given(data=st.data())
@settings(max_examples=scaled(300))
def test_a_table_is_refused_or_safe(data: st.DataObject) -> None:
    raw = bytearray(charsmap(_="é", A="a", B="bc"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = 4 * data.draw(
            st.sampled_from([0, 1, 2, 3, 257 ^ ord("A") ^ 1, 1 + (256 ^ ord("A")), 1 + (256 ^ ord("B"))])
        )
        raw[at : at + 4] = struct.pack("<I", data.draw(UNITS))
    try:
        check_charsmap(bytes(raw), Path("m.gguf"))
    except ModelError:
        return
    assert isinstance(normalizers.Precompiled(bytes(raw)).normalize_str("AB_é\u4f60 \x01\x7f"), str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab a", ["<bos>", "ab", "\u2581a"]),
        ("a  b\n\n", ["<bos>", "a", "\u2581\u2581", "b", "\n\n"]),
        ("é", ["<bos>", "<0xC3>", "<0xA9>"]),
        ("<|turn>a<tool>", ["<bos>", "<|turn>", "a", "<tool>"]),
    ],
)
def test_gemma_4_merges_lines_with_marked_spaces(tmp_path: Path, text: str, expected: list[str]) -> None:
    # The file denies the first token wrongly, as some do.
    tokenizer = load_vocabulary(tmp_path, "gemma4", GEMMA, GEMMA_MERGES, **GEMMA_KEYS, add_bos_token=False)
    encoded = tokenizer.encode(text)
    assert encoded.tokens == expected
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False).removeprefix("<bos>") == text


def test_words_without_spaces_between_them(tmp_path: Path) -> None:
    tokens = [("<unk>", UNKNOWN), *LETTERS, ("A", NORMAL)]
    keys = {"unknown_token_id": 0}
    tokenizer = load_vocabulary(tmp_path, "whitespace", tokens, MERGES, **keys)
    assert tokenizer.encode(" ab\u3000bA z").tokens == ["ab", "b", "A", "<unk>"]
    lowered = load_vocabulary(tmp_path, "whitespace", tokens, MERGES, **keys, changes={"normalizer.lowercase": True})
    assert lowered.encode("AB").tokens == ["ab"]


@pytest.mark.parametrize(
    ("keys", "single", "pair"),
    [
        ({}, "a", "ab"),
        ({"add_bos_token": True}, "<a", "<a<b"),
        ({"add_eos_token": True}, "a>", "a>b>"),
        ({"add_bos_token": True, "add_eos_token": True, "add_sep_token": True}, "<a>", "<a>|b>"),
        ({"pre": "llama-bpe"}, "<a", "<a<b"),
        ({"pre": "chameleon", "add_bos_token": False}, "a", "ab"),
    ],
)
def test_flags_say_which_tokens_surround_a_text(tmp_path: Path, keys: dict[str, Any], single: str, pair: str) -> None:
    tokens = [("<", CONTROL), (">", CONTROL), ("|", CONTROL), *LETTERS]
    named = {"bos_token_id": 0, "eos_token_id": 1, "seperator_token_id": 2}
    tokenizer = load_vocabulary(tmp_path, "gpt2", tokens, MERGES, **named, **keys)
    assert "".join(tokenizer.encode("a").tokens) == single
    assert "".join(tokenizer.encode("a", "b").tokens) == pair


def test_the_first_tokens_text_may_have_any_characters(tmp_path: Path) -> None:
    tokens = [("$A: 1 x", CONTROL), *LETTERS]
    tokenizer = load_vocabulary(tmp_path, "gpt2", tokens, MERGES, bos_token_id=0, add_bos_token=True)
    assert tokenizer.encode("a").tokens == ["$A: 1 x", "a"]


def test_tokens_that_end_an_answer_are_control_tokens_whatever_the_file_says(tmp_path: Path) -> None:
    tokens = [("<|im_end|>", NORMAL), ("<|fim_prefix|>", USER_DEFINED), ("<name>", USER_DEFINED), *LETTERS]
    tokenizer = load_vocabulary(tmp_path, "gpt2", tokens, MERGES, pre="qwen2")
    encoded = tokenizer.encode("a<|im_end|><|fim_prefix|><name>")
    assert encoded.tokens == ["a", "<|im_end|>", "<|fim_prefix|>", "<name>"]
    assert tokenizer.decode(encoded.ids) == "a<name>"
    # Gemma 4 has it as text.
    gemma = load_vocabulary(
        tmp_path, "gemma4", [*GEMMA, ("<|tool_response>", USER_DEFINED)], GEMMA_MERGES, **GEMMA_KEYS
    )
    added = {entry.content for entry in gemma.get_added_tokens_decoder().values()}
    assert "<|tool_response>" in added
    assert "</s>" not in added


def test_masks_swallow_the_space_before_them(tmp_path: Path) -> None:
    tokens = [("<mask>", CONTROL), ("Ġ", NORMAL), *LETTERS]
    for pre, expected in (("jina-v2-de", ["a", "<mask>"]), ("jina-v1-en", ["a", "Ġ", "<mask>"])):
        assert names(load_vocabulary(tmp_path, "gpt2", tokens, MERGES, pre=pre), "a <mask>") == expected


def test_text_is_composed_where_the_model_was_trained_so(tmp_path: Path) -> None:
    tokens = [("Ã©", NORMAL), ("Ã", NORMAL), ("©", NORMAL), ("Ì", NORMAL), ("ģ", NORMAL), *LETTERS]
    for pre, expected in (("qwen2", ["Ã©"]), ("command-r", ["Ã©"]), ("llama-bpe", ["e", "Ì", "ģ"])):
        assert load_vocabulary(tmp_path, "gpt2", tokens, ["Ã ©"], pre=pre).encode("e\u0301").tokens == expected


def test_a_token_without_text_gets_a_name(tmp_path: Path) -> None:
    tokenizer = load_vocabulary(tmp_path, "gpt2", [*LETTERS, ("", UNUSED)], MERGES)
    assert tokenizer.id_to_token(len(LETTERS)) == f"[EMPTY_{len(LETTERS)}]"


KINDS = ("bert", "t5", "t5 without prefix", "t5 with bytes", "gemma4", "whitespace")


def tokenizer_of(path: Path, kind: str) -> Tokenizer:
    if kind == "bert":
        return load_vocabulary(path, "bert", BERT, **BERT_KEYS)
    if kind == "gemma4":
        return load_vocabulary(path, "gemma4", GEMMA, GEMMA_MERGES, **GEMMA_KEYS)
    if kind == "whitespace":
        return load_vocabulary(path, "whitespace", LETTERS, MERGES)
    spaces = [(byte, kind_, 0.0) for byte, kind_ in BYTES] if kind == "t5 with bytes" else []
    return unigram(path, spaces, unknown_token_id=2, add_space_prefix=kind != "t5 without prefix")


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streamed_text_is_the_whole_text(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(tmp_path, kind)
    text = data.draw(st.text(st.sampled_from("ab ,x[]é漢😀\n")))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoder = TokenDecoder(tokenizer)
    assert "".join([*map(decoder.push, ids), decoder.flush()]) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("rwkv", ": its pieces are bytes"),
        ("plamo2", ": its unigrams are searched from the end"),
        ("hybriddna", ": it writes DNA"),
        ("none", ": the file has no vocabulary"),
        ("martian", " (bert, gemma4, gpt2, llama, t5, whitespace are)"),
    ],
)
def test_other_kinds_are_refused_in_a_sentence(tmp_path: Path, kind: str, why: str) -> None:
    with pytest.raises(ModelError) as error:
        load_vocabulary(tmp_path, kind, LETTERS)
    assert f"m.gguf: tokenizer model {kind!r} is not supported{why}" in str(error.value)
    assert "gpt2, llama, t5, whitespace are); put the model's tokenizer.json beside the file" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "tokens", "keys", "message"),
    [
        ("gpt2", LETTERS, {}, "tokenizer.ggml.merges is missing"),
        ("gpt2", [*LETTERS, LETTERS[0]], {"merges": MERGES}, "tokenizer.ggml.tokens has 'a' twice"),
        ("gpt2", LETTERS, {"merges": ["ab"]}, "merge 'ab' is not two tokens separated by a space"),
        ("gpt2", LETTERS, {"merges": ["a "]}, "merge 'a ' is not two tokens separated by a space"),
        ("gpt2", LETTERS, {"merges": ["a z"]}, "vocabulary and merges do not fit: .*"),
        ("gpt2", LETTERS, {"merges": MERGES, "bos_token_id": 99, "add_bos_token": True}, "bos token 99 is outside"),
        ("gpt2", LETTERS, {"merges": MERGES, "add_eos_token": "x"}, "add_eos_token is 'x', expected true or false"),
        ("gpt2", LETTERS, {"merges": MERGES, "pre": "martian"}, "pre-tokenizer 'martian' is not supported"),
        ("gpt2", LETTERS, {"changes": {"token_type": [1.5] * 12}}, "token_type has fractions, expected integers"),
        ("gpt2", LETTERS, {"changes": {"token_type": [1] * 3}}, "token_type does not have one entry per token"),
        ("gpt2", LETTERS, {"changes": {"tokens": "a"}}, "tokenizer.ggml.tokens is missing"),
        ("bert", BERT, {"unknown_token_id": 99}, "unknown token 99 is outside the vocabulary of"),
        ("bert", BERT[:5], {}, "tokenizer.ggml.unknown_token_id is missing"),
        ("bert", [*BERT, ("\u2581##a", NORMAL)], BERT_KEYS, "tokens 18 and 21 are the same piece '##a'"),
        ("t5", LETTERS, {}, "tokenizer.ggml.scores does not have one entry per token"),
        ("t5", LETTERS, {"scores": [0.0] * 3}, "tokenizer.ggml.scores does not have one entry per token"),
        ("t5", LETTERS, {"scores": [0.0, float("nan"), *[0.0] * 10]}, "scores has nan for token 1, expected a number"),
        ("t5", LETTERS[:2], {"scores": [0.0] * 2}, "tokenizer.ggml.unknown_token_id is missing"),
        ("t5", LETTERS, {"scores": [0.0] * 12, "precompiled_charsmap": "x"}, "charsmap is not an array of bytes"),
        ("t5", LETTERS, {"scores": [0.0] * 12, "precompiled_charsmap": [70000]}, "charsmap is not an array of bytes"),
        ("t5", LETTERS, {"scores": [0.0] * 12, "precompiled_charsmap": b"abc"}, "charsmap is damaged: a trie of"),
        (
            "t5",
            [(f"<c{number}>", CONTROL) for number in range(1025)],
            {"scores": [0.0] * 1025},
            "1025 control tokens, supported are 1024",
        ),
    ],
)
def test_vocabularies_that_cannot_work_are_refused(
    tmp_path: Path, kind: str, tokens: list[tuple[str, int]], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=f"m.gguf: .*{message}"):
        load_vocabulary(tmp_path, kind, tokens, **keys)
