"""Splitting rules of GGUF files with merges.

splits.json was made by llama.cpp (llama-cpp-python 0.3.36). Each rule got a vocabulary with all parts of the texts, and
merges that join all neighbours, so a token was a piece. The mark ¦ is between pieces.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from octavo_inference.tokenizer.bpe import splitter
from octavo_inference.tokenizer.splitting import RULES, SplittingRule

from .vocabularies import NORMAL, load_vocabulary

MADE = json.loads((Path(__file__).parent / "splits.json").read_text(encoding="utf-8"))
BYTES = {name: rule for name, rule in RULES.items() if rule.alphabet == "bytes"}
# One name for each set of expressions.
DISTINCT = {rule.splits: name for name, rule in RULES.items()}.values()


def pieces(rule: SplittingRule, text: str) -> list[str]:
    """The pieces of `text`, in its own characters."""
    return [text[start:end] for _, (start, end) in splitter(rule).pre_tokenize_str(text)]


@pytest.mark.parametrize("names", [entry["names"] for entry in MADE])
def test_pieces_are_those_of_llama_cpp(names: str) -> None:
    for marked in next(entry["pieces"] for entry in MADE if entry["names"] == names):
        for name in names.split():
            assert pieces(RULES[name], marked.replace("¦", "")) == marked.split("¦"), name


def test_each_rule_has_pieces_by_llama_cpp() -> None:
    # An alias that llama.cpp does not have.
    assert {name for entry in MADE for name in entry["names"].split()} == BYTES.keys() - {"gpt2"}


def test_a_file_that_names_no_rule_is_split_by_llama_cpps_default(tmp_path: Path) -> None:
    tokens = [(piece, NORMAL) for piece in ("1", "11", "+", "++", "a")]
    unnamed = load_vocabulary(tmp_path, "gpt2", tokens, ["1 1", "+ +"])
    assert unnamed.encode("1111++a").tokens == ["11", "1", "1", "++", "a"]
    assert load_vocabulary(tmp_path, "gpt2", tokens, ["1 1", "+ +"], pre="gpt-2").encode("1111").tokens == ["11", "11"]


@pytest.mark.parametrize(
    ("name", "marked"),
    [
        # llama.cpp's regular expressions know no cases outside ASCII, and no marks.
        ("tekken", "नमस्ते¦ दुनिया¦ жж¦ЖЖж"),
        ("gpt-4o", "नमस्ते¦ दुनिया¦ жж¦ЖЖж"),
        ("youtu", "camel¦Case¦HTTPServer's"),
        ("kimi-k2", "camel¦Case¦漢字¦かな"),
        # Threes are counted from the end only where a word ends.
        ("tiny_aya", "12¦345¦ ¦123¦45¦abc"),
        # White space before digits is a piece of its own.
        ("afmoe", "a¦   ¦1¦234"),
        # Digits of all scripts count.
        ("superbpe", "عالم ¦١¦٢٣٤"),
        # A wide space is between U+0800 and U+4E00.
        ("deepseek-coder", "\t¦\u3000¦\tx"),
    ],
)
def test_where_llama_cpp_simplifies_the_models_own_rule_holds(name: str, marked: str) -> None:
    assert pieces(RULES[name], marked.replace("¦", "")) == marked.split("¦")


@pytest.mark.parametrize("name", ["gemma4", "sarvam-moe", "granite-embed-multi-311m"])
def test_marked_vocabularies_are_split_at_ends_of_lines_only(name: str) -> None:
    assert pieces(RULES[name], "a▁b\n\n▁c") == ["a▁b", "\n\n", "▁c"]


def test_words_of_a_vocabulary_without_spaces() -> None:
    assert pieces(RULES["whitespace"], "  a\u3000bc \n d") == ["a", "bc", "d"]


@pytest.mark.parametrize("name", DISTINCT)
def test_time_to_split_is_linear_in_the_text(name: str) -> None:
    split = splitter(RULES[name])
    # Each run could be read again from each of its characters.
    for run in ("7", " ", "\n", "\u00a0", " \n", "a", "A", "'", "!", "\u0301", "漢", "½", "IMG", "ʰ"):

        def seconds(count: int, run: str = run, split: pre_tokenizers.PreTokenizer = split) -> float:
            text = run * (count // len(run)) + "x"
            begin = time.thread_time()
            split.pre_tokenize_str(text)
            return time.thread_time() - begin

        # Quadratic would be a hundred times as long as for a tenth, and some tenths of a second here.
        if seconds(20_000) > 0.1:
            assert min(seconds(20_000) for _ in range(3)) < 30 * min(seconds(2_000) for _ in range(3)), run
