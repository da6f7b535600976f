"""The special tokens that a tokenizer adds to a text."""

from __future__ import annotations

from tokenizers import Tokenizer

_PROBE = "a"


def surrounding(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer adds before and after a text, such as a beginning-of-sequence token."""
    found = tokenizer.encode(_PROBE)
    text = [number for number, special in enumerate(found.special_tokens_mask) if not special]
    return found.ids[: text[0]], found.ids[text[-1] + 1 :]
