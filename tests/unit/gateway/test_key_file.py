"""What a key file may say, and how what is wrong is named."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_gateway.access.api_keys import MAX_PRIORITY, KeyFileError, digest_of
from octavo_gateway.access.key_file import KeyFile, parse
from octavo_gateway.access.rate_limits import RateLimits

SECRET = "s3cret-of-somebody"
FULL = f"""\
# who may call
keys:
- name: team-a
  key: {SECRET}
  tenant: shop
  models: [smollm2, "team-a/*"]
  requestsPerMinute: 60
  tokensPerMinute: 100_000
  maxConcurrent: 8
  priority: {{default: 1, max: 5}}
  expires: 2027-01-31T00:00:00Z
- name: team-b
  key: ["sha256:{hashlib.sha256(b"old").hexdigest()}", new]
  tenant: shop
"""


def test_plain_keys_are_without_limits() -> None:
    found = parse(f"# people\nalpha\n\n sha256:{hashlib.sha256(b'beta').hexdigest()} \n")
    assert set(found) == {digest_of("alpha"), digest_of("beta")}
    alpha, beta = found[digest_of("alpha")], found[digest_of("beta")]
    assert (alpha.name, alpha.limits, alpha.max_priority) == ("", RateLimits(), MAX_PRIORITY)
    assert alpha.may_use(("anything",))
    assert alpha.tenant != beta.tenant
    assert alpha.account != beta.account


def test_every_field() -> None:
    found = parse(FULL)
    entry = found[digest_of(SECRET)]
    assert (entry.name, entry.models) == ("team-a", ("smollm2", "team-a/*"))
    assert entry.limits == RateLimits(requests=60, tokens=100_000, concurrent=8)
    assert (entry.priority, entry.max_priority) == (1, 5)
    assert entry.expires == datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    assert found[digest_of("old")] is found[digest_of("new")]
    assert found[digest_of("old")].tenant == entry.tenant
    assert "shop" not in entry.tenant


def test_json_is_read_too() -> None:
    text = json.dumps({"keys": [{"name": "a", "key": "k", "maxConcurrent": 1, "expires": "2027-01-31"}]})
    assert parse(text)[digest_of("k")].limits == RateLimits(concurrent=1)


def test_models_are_named_in_any_way_the_gateway_knows_them() -> None:
    entry = parse(FULL)[digest_of(SECRET)]
    assert entry.may_use(("smollm2", "ns/x"))
    assert entry.may_use(("other", "team-a/x"))
    assert not entry.may_use(("smollm2-large", "team-b/x"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keys: 3", "line 1, keys: expected a list, found a single value"),
        ("{}", "keys: expected a list, found nothing"),
        ("keys: [s3cret-of-somebody]", "line 1, keys[0]: expected a map"),
        ("keys:\n- s3cret-of-somebody: 1", "line 2, keys[0]: unknown field; known: name, key"),
        ("keys:\n- name: a\n  requestPerMinute: 1", "line 3, keys[0]: unknown field; is it 'requestsPerMinute'?"),
        ("keys:\n- name: a\n  name: b", "line 3, keys[0].name: is given twice"),
        ("keys:\n- key: k", "line 2, keys[0].name: is missing"),
        ("keys:\n- name: a", "line 2, keys[0].key: is missing"),
        ("keys:\n- {name: A B, key: k}", "line 2, keys[0].name: expected a name of a-z"),
        ("keys:\n- {name: a, key: 12345}", "line 2, keys[0].key: expected a key without spaces, in quotes"),
        ("keys:\n- {name: a, key: s3cret-of-somebody x}", "line 2, keys[0].key: expected a key without spaces"),
        ("keys:\n- {name: a, key: []}", "line 2, keys[0].key: expected 1 to 8 keys, found 0"),
        ("keys:\n- {name: a, key: k}\n- {name: a, key: l}", "line 3, keys[1].name: 'a' is used twice"),
        ("keys:\n- {name: a, key: k}\n- {name: b, key: k}", "line 3, keys[1].key: this key is already that of 'a'"),
        (
            "keys:\n- name: a\n  key: k\n  requestsPerMinute: many",
            "line 4, keys[0].requestsPerMinute: expected a whole number from 1 to 1000000000, found 'many'",
        ),
        ("keys:\n- {name: a, key: k, tokensPerMinute: -1}", "keys[0].tokensPerMinute: expected a whole number from 1"),
        ("keys:\n- {name: a, key: k, maxConcurrent: 1.5}", "keys[0].maxConcurrent: expected a whole number from 1"),
        ("keys:\n- {name: a, key: k, maxConcurrent: true}", "keys[0].maxConcurrent: expected a whole number from 1"),
        ("keys:\n- {name: a, key: k, priority: 3}", "keys[0].priority: expected a map with default, max"),
        ("keys:\n- {name: a, key: k, priority: {max: 11}}", "keys[0].priority.max: expected a whole number from -10"),
        ("keys:\n- {name: a, key: k, priority: {max: 1, default: 2}}", "priority.default: 2 is above `max`, 1"),
        ("keys:\n- {name: a, key: k, models: []}", "keys[0].models: expected 1 to 64 patterns, found 0"),
        ("keys:\n- {name: a, key: k, models: [3]}", "keys[0].models[0]: expected a model's name"),
        ("keys:\n- {name: a, key: k, expires: soon}", "keys[0].expires: expected a time such as 2027-01-31T00:00:00Z"),
        ("keys:\n- name: s3cret-of-somebody\n\tkey", "line 3: not valid YAML"),
        ("keys: " + "[" * 100_000, "nested deeper than 8 levels"),
        ("keys: " + "a" * 2**20, "the file is longer than"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_no_key(text: str, told: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse(text)
    assert told in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


@settings(max_examples=scaled(300), deadline=None)
@given(st.text(max_size=200).map("keys:\n- {name: a, key: k".__add__) | st.text(max_size=60).map("{".__add__))
def test_any_text_gives_keys_or_one_line(text: str) -> None:
    told = ""
    try:
        parse(text)
    except KeyFileError as error:
        told = str(error)
    assert "\n" not in told


def test_a_bad_file_at_the_start_is_refused(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("keys:\n- {name: a}")
    with pytest.raises(KeyFileError, match=r"keys: line 2, keys\[0\].key: is missing"):
        KeyFile(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(KeyFileError, match="not UTF-8"):
        KeyFile(path)


def test_a_bad_file_later_keeps_the_keys_and_is_told_once(tmp_path, caplog) -> None:
    path = tmp_path / "keys"
    path.write_text("keys:\n- {name: a, key: k}")
    keys = KeyFile(path)
    path.write_text("keys:\n- {name: a, key: other, color: red}")
    for now in (2.0, 4.0, 6.0):
        assert keys.find("k", now)
    assert not keys.valid
    assert caplog.text.count("keeping the previous keys: line 2, keys[0]: unknown field") == 1
    path.write_text("keys:\n- {name: a, key: new-key}")
    assert keys.find("new-key", 8.0)
    assert (keys.valid, keys.generation, keys.find("k", 8.0)) == (True, 1, None)
