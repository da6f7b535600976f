"""The normalisation table of SentencePiece (`precompiled_charsmap`), checked before the library reads it.

A table is the size of a trie in bytes, the trie, and the replacements, each with a zero byte at its end. The trie is a
double array of 32-bit units (github.com/s-yata/darts-clone): bits 0 to 7 and 31 are the label, bit 8 marks a unit with
a value, bit 9 shifts the offset, which is in bits 10 to 30. The child for byte c of a node at n is unit n ^ c. The
library trusts offsets and values, and a wrong one stops the process.
"""

from __future__ import annotations

import struct
from pathlib import Path

from octavo_inference.common.errors import ModelError

_LABEL = 1 << 31 | 0xFF
_HAS_VALUE = 1 << 8
_VALUE = (1 << 31) - 1


def check_charsmap(raw: bytes, path: Path) -> None:
    """Raises `ModelError` for a table that is cut off, or whose trie leads out of it."""

    def damaged(what: str) -> ModelError:
        return ModelError(f"{path}: tokenizer.ggml.precompiled_charsmap is damaged: {what}")

    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or size == 0 or 4 + size > len(raw):
        raise damaged(f"a trie of {size} bytes in {len(raw)}")
    units = struct.unpack_from(f"<{size // 4}I", raw, 4)
    replacements = raw[4 + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise damaged(f"its replacements are not UTF-8: {error}") from None
    children: dict[int, list[int]] = {}
    for index, unit in enumerate(units):
        label = unit & _LABEL
        if 0 < label <= 0xFF:
            children.setdefault(index ^ label, []).append(index)
    waiting = [_offset(units[0])]
    while waiting:
        node = waiting.pop()
        # A lookup reads the unit for any byte that follows.
        if node | 0xFF >= len(units):
            raise damaged(f"node {node} is outside its trie of {len(units)} units")
        for child in children.pop(node, ()):
            below = child ^ _offset(units[child])
            waiting.append(below)
            if units[child] & _HAS_VALUE:
                value = units[below] & _VALUE if below < len(units) else len(raw)
                if value >= len(replacements) or replacements[value] & 0xC0 == 0x80:
                    raise damaged(f"replacement {value} is outside its {len(replacements)} bytes")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
