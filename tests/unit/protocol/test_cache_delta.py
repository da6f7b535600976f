"""What a pod's load report says of its cache, to those who ask."""

from __future__ import annotations

import msgspec
import pytest

from octavo_protocol.hashing import keys
from octavo_protocol.load import CacheDelta, LoadReport, decode_load, encode

REPORT = LoadReport(
    sequence=1, start_time=1.0, model="m", block_size=16, blocks_total=8, blocks_pinned=0, blocks_cached=0, running=0,
    waiting=0, waiting_tokens=0, uncached_prompt_tokens=0, oldest_wait=0.0, preemptions=0, requests=0, prompt_tokens=0,
    generation_tokens=0, prefix_hit_tokens=0, max_running=4, max_batched_tokens=64, max_waiting=4, ready=True,
    draining=False,
)  # fmt: skip


def with_cache(**fields):
    return msgspec.structs.replace(REPORT, cache=CacheDelta(**fields))


def test_a_report_without_a_cache_is_as_before():
    assert decode_load(encode(REPORT)).cache is None


def test_keys_come_back_as_they_were_written():
    report = decode_load(encode(with_cache(sequence=7, added=b"12345678abcdefgh", removed=b"\0" * 8)))
    assert report.cache == CacheDelta(sequence=7, added=b"12345678abcdefgh", removed=b"\0" * 8)
    assert keys(report.cache.added) == [b"12345678", b"abcdefgh"]


@pytest.mark.parametrize("field", ["added", "removed"])
def test_half_a_key_is_named(field):
    data = encode(REPORT).replace(b'"cache":null', b'"cache":{"sequence":1,"%s":"AAAA"}' % field.encode())
    with pytest.raises(msgspec.ValidationError, match=f"{field}: 3 bytes"):
        decode_load(data)
    with pytest.raises(ValueError, match="3 bytes"):
        keys(b"abc")
