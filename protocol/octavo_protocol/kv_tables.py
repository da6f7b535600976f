"""How many blocks of a KV pool a sequence holds: the arithmetic of servers and of the operator.

A sequence has one or several block tables. Those of layers with full attention grow with it. Those of layers with a
window, or with chunks, free the blocks behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class KvTables(msgspec.Struct, frozen=True, omit_defaults=True):
    """Block tables of one kind. `reach`: most tokens that a token attends to before itself; None for any number."""

    tables: _Count
    reach: _Count | None = None


def table_count(kinds: Sequence[KvTables]) -> int:
    """Block tables of a sequence. No kinds are one table of full attention."""
    return sum(kind.tables for kind in kinds) or 1


def blocks_held(kinds: Sequence[KvTables], tokens: int, chunk: int, block_size: int) -> int:
    """Most blocks that a sequence holds at a time until it has `tokens`, if it computes up to `chunk` at once."""
    return sum(kind.tables * columns_held(kind.reach, tokens, chunk, block_size) for kind in kinds or (KvTables(1),))


def columns_held(reach: int | None, tokens: int, chunk: int, block_size: int) -> int:
    """The blocks of one table."""
    whole = -(-tokens // block_size)
    # The tokens at both ends may lie in blocks of their own.
    return whole if reach is None else min(whole, -(-(reach + chunk) // block_size) + 1)


def longest_held(kinds: Sequence[KvTables], blocks: int, chunk: int, block_size: int, most: int) -> int:
    """Tokens of the longest sequence that so many blocks can hold, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        fits = blocks_held(kinds, middle, chunk, block_size) <= blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def tokens_held(kinds: Sequence[KvTables], blocks: int, chunk: int, block_size: int, length: int) -> int:
    """Tokens that so many blocks hold, of sequences of `length` tokens that generate.

    Less than one such sequence where the blocks are too few to compute it in chunks.
    """
    if not any(kind.reach is not None for kind in kinds):
        return blocks // table_count(kinds) * block_size
    if blocks < blocks_held(kinds, length, chunk, block_size):
        return longest_held(kinds, blocks, chunk, block_size, length)
    whole, rest = divmod(blocks, blocks_held(kinds, length, 1, block_size))
    return whole * length + longest_held(kinds, rest, 1, block_size, length)
