"""The hash chain over KV blocks. The prefix cache and the gateway's prefix affinity use the same keys."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

DIGEST_BYTES = 16
KEY_BYTES = 8
"""Length of a block key, the prefix of a block's hash by which pods and gateways identify a block."""


def root_hash(model_digest: str, adapter: str = "", salt: str = "") -> bytes:
    """Root hash of all chains of one (model, adapter, tenant salt), so that caches never mix between them."""
    h = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (model_digest, adapter, salt):
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of one full block; through `parent` it depends on every earlier token."""
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
    """Split concatenated block keys. Raises `ValueError` if an incomplete key remains."""
    if len(data) % KEY_BYTES:
        raise ValueError(f"{len(data)} bytes are not a multiple of {KEY_BYTES}, the size of a block key")
    return [data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)]
