from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary


@pytest.fixture(scope="session")
def bytes_vocabulary() -> Vocabulary:
    """Tokens of one byte each, so that a text has one form."""
    return Vocabulary(byte_tokenizer(), 257, [256])


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: id n is byte n, and 256 ends."""
    alphabet = byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)} | {"<end>": 256}
    import json

    added = {
        "id": 256,
        "content": "<end>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [added],
                "pre_tokenizer": byte_level,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }
        )
    )


def byte_alphabet() -> dict[int, str]:
    """GPT-2's character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


@pytest.fixture
def accepts(bytes_vocabulary: Vocabulary) -> Callable[[str, str], bool]:
    """Whether a grammar accepts a whole text."""

    def check(grammar: str, text: str) -> bool:
        import numpy as np

        matcher = bytes_vocabulary.compile(grammar)
        try:
            for byte in text.encode():
                matcher.consume(byte)
        except RequestError:
            return False
        if matcher.is_complete:
            return True
        mask = np.zeros(9, np.int32)
        matcher.fill(mask)
        return bool(mask[8] & 1)

    return check
