"""The KV pool of a replica, as the estimates for CPUs and GPUs have it in common."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_protocol.kv_tables import KvTables, table_count, tokens_held


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEstimate:
    """Bytes of the pool.

    `kv`: the pool, of blocks and of `states` of sequences; `sequence`: what it needs for the longest sequence, with all
    states; `block`: a block of the pool; `length`: longest sequence in tokens. `tables` are the block tables of a
    sequence, which computes up to `chunk` tokens at once.
    """

    kv: int
    sequence: int
    block: int
    block_size: int
    length: int
    states: int = 0
    tables: tuple[KvTables, ...] = ()
    chunk: int = 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return self.tokens_in(self.kv)

    @property
    def least(self) -> int:
        """Fewest bytes of KV with which a server starts."""
        return 2 * table_count(self.tables) * self.block + self.states

    def tokens_in(self, kv: int) -> int:
        """Tokens of sequences of the longest length that fit into a pool of so many bytes."""
        blocks = max(0, kv - self.states) // self.block
        return tokens_held(self.tables, blocks, self.chunk, self.block_size, self.length)

    @property
    def of_states(self) -> str:
        """What `sequence` has besides KV, for a sentence."""
        return " with the states of all running sequences" if self.states else ""
