"""The hash chain that names KV blocks: prefix cache, tiers, hand-off and gateway affinity all use the same keys."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16
KEY_BYTES = 8
"""A block's key, as pods and gateways tell each other of blocks: the beginning of its hash."""


def root_hash(model_digest: str, adapter: str = "", salt: str = "") -> bytes:
    """Hash every chain of one (model, adapter, tenant salt) starts from, so that caches never mix between them."""
    h = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (model_digest, adapter, salt):
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of one full block: depends on every token before it through `parent`."""
    return hashlib.blake2b(parent + array("I", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def block_hashes(root: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of all full blocks of `tokens`, in order; a partial last block has none."""
    hashes: list[bytes] = []
    parent = root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = block_hash(parent, tokens[start : start + block_size])
        hashes.append(parent)
    return hashes


def keys(data: bytes) -> list[bytes]:
    """Block keys that were written one after the other. Raises `ValueError` for what is left over."""
    if len(data) % KEY_BYTES:
        raise ValueError(f"{len(data)} bytes are no whole number of block keys of {KEY_BYTES} bytes")
    return [data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)]
