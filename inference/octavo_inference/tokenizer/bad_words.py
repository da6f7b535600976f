"""Words that must not be generated, as token sequences."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer

# Some tokenizers put a space before a text. After this one, a word stays without.
_BEFORE = "\n"


def token_sequences(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word at the start of a text, in the middle of one, and after a space, each sequence once.

    Other ways to write a word, such as in capitals or with other spaces, are other words.
    """
    before = _encode(tokenizer, _BEFORE)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        sequences = [_encode(tokenizer, word), _encode(tokenizer, f" {word.lstrip()}")]
        inside = _encode(tokenizer, _BEFORE + word)
        if inside[: len(before)] == before:
            sequences.append(inside[len(before) :])
        found.update((sequence, None) for sequence in sequences if sequence)
    return tuple(found)


def _encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
