"""The hash chain that names KV blocks."""

from __future__ import annotations

from octavo_protocol.hashing import root_hash


def test_model_adapter_and_salt_are_told_apart_wherever_one_ends():
    roots = [root_hash("ab", "c", "d"), root_hash("a", "bc", "d"), root_hash("ab", "cd"), root_hash("abcd")]
    assert len(set(roots)) == 4
