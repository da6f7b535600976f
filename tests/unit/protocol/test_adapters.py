"""The list of adapters that a server reads."""

from __future__ import annotations

import msgspec
import pytest

from octavo_protocol.adapters import MAX_ADAPTERS, ListedAdapter, decode_list, encode_list


def test_a_list_survives_its_file() -> None:
    adapters = [
        ListedAdapter(name="org/sql:v2", path="/adapters/1", source="hf://org/sql@0123"),
        ListedAdapter(name="chat", failure="no such repository"),
    ]
    assert decode_list(encode_list(adapters)) == adapters


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "/a", "a/", "a b", "a\n", ".a", "a//b", "x" * 129])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="name"):
        decode_list(msgspec.json.encode([{"name": name, "path": "/adapters/1"}]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'[{"name":"a"}]', r"needs a path or a failure - at `\$\[0\].path`"),
        (b'[{"name":"a","path":"/1"},{"name":"a","path":"/2"}]', r"'a' occurs twice - at `\$\[1\].name`"),
        (b'[{"name":"a","path":"/1","rank":3}]', "rank"),
        (b"{}", "array"),
    ],
)
def test_a_list_that_is_none_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        decode_list(text)


def test_a_list_has_a_bound() -> None:
    many = [ListedAdapter(name=f"a{number}", path="/a") for number in range(MAX_ADAPTERS + 1)]
    with pytest.raises(msgspec.ValidationError, match="at most"):
        decode_list(encode_list(many))
