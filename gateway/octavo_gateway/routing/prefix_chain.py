"""Names the prefixes of a prompt: a chain of keys, each for one more piece of its text and all text before it. Pure.

The gateway has no tokenizer, so pieces are counted in bytes and not in tokens.
"""

from __future__ import annotations

from hashlib import blake2b

from octavo_protocol.hashing import KEY_BYTES

# The first pieces are about one block long. Later pieces are longer, because one block is a small part of a long
# prompt. Text after the last piece is ignored.
# A piece with its parent's key fills whole blocks of the hash function.
FINE, FINES = 128 - KEY_BYTES, 256
COARSE, COARSES = 1024 - KEY_BYTES, 992
_FINE_END = FINE * FINES
_COARSE_END = _FINE_END + COARSE * COARSES


def chain(root: bytes, text: bytes) -> tuple[bytes, ...]:
    """Keys of all full pieces of a text, in order. `root` differs for texts that share no cache."""
    keys: list[bytes] = []
    key = root
    view = memoryview(text)
    for start, end, size in ((0, _FINE_END, FINE), (_FINE_END, _COARSE_END, COARSE)):
        for at in range(start, min(len(text), end) - size + 1, size):
            key = blake2b(key + view[at : at + size], digest_size=KEY_BYTES).digest()
            keys.append(key)
    return tuple(keys)


def root(*names: str) -> bytes:
    """The root of a chain: a digest of the names that separate caches, such as the model and the tenant."""
    h = blake2b(digest_size=KEY_BYTES)
    for name in names:
        data = name.encode("utf-8", "surrogateescape")
        h.update(len(data).to_bytes(8, "little") + data)
    return h.digest()


def reach(pieces: int) -> int:
    """Bytes of text that the first `pieces` keys of a chain cover."""
    fine = min(pieces, FINES)
    return fine * FINE + (pieces - fine) * COARSE


REACH = tuple(reach(pieces) for pieces in range(FINES + COARSES + 1))
"""`reach` of every possible number of keys."""


def pieces(size: int) -> int:
    """Number of full pieces in a text of `size` bytes."""
    fine = min(size, _FINE_END)
    return fine // FINE + (min(size, _COARSE_END) - fine) // COARSE
