"""How much memory a replica needs, from what a look at its model found: the server's own arithmetic, before it runs."""

from __future__ import annotations


def kv_element_bytes(dtype: str) -> int:
    """Bytes of one number of K or V in the pool, by `engine.dtype`."""
    return 4 if dtype == "float32" else 2
