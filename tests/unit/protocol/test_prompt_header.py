"""The header that tells a gateway which blocks stand behind a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_protocol.hashing import block_hashes, root_hash
from octavo_protocol.prompt import MAX_KEYS, PromptBlocks, PromptError, decode_prompt, describe, encode_prompt

ROOT = root_hash("model")


def described(tokens, block_size=4):
    return describe(tokens, block_size, block_hashes(ROOT, range(tokens), block_size))


def test_a_short_prompt_names_all_its_full_blocks():
    first, second = block_hashes(ROOT, range(8), 4)
    assert described(11) == PromptBlocks(11, 4, ((4, first[:8]), (8, second[:8])))


def test_a_prompt_shorter_than_a_block_and_one_without_shared_prefixes_name_none():
    assert encode_prompt(described(3)) == "3/4/"
    assert decode_prompt(encode_prompt(describe(1000, 16, []))) == PromptBlocks(1000, 16)


def test_a_long_prompt_names_evenly_spaced_blocks_and_the_last():
    positions = [position for position, _ in described(4 * 1000 + 3).marks]
    assert len(positions) == MAX_KEYS
    assert positions[-1] == 4000
    assert {b - a for a, b in zip([0, *positions], positions, strict=False)} == {60, 64}


def test_positions_between_blocks_are_rounded_up():
    # Not sent but computed on both sides, and in an upgrade the sides are of two versions: 65 / 64 becomes 2.
    positions = [position for position, _ in described(4 * 65).marks]
    assert positions == [4 * block for block in range(2, 66)]


def test_the_longest_value_is_a_small_header():
    assert len(encode_prompt(described(2**20, 32))) < 710


@given(tokens=st.integers(0, 3000), block_size=st.sampled_from([1, 4, 16, 128]))
def test_what_is_encoded_is_decoded(tokens, block_size):
    prompt = described(tokens, block_size)
    assert decode_prompt(encode_prompt(prompt)) == prompt
    hashes = block_hashes(ROOT, range(tokens), block_size)
    assert all(key == hashes[position // block_size - 1][:8] for position, key in prompt.marks)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "3",
        "3/4",
        "3/4//",
        "-3/4/",
        "03/4/",
        "3/0/",
        "3.0/4/",
        "٣/4/",
        "4/4/AAAA",
        "4/4/AAAAAAAAAAAAAAAA",
        "9/4/AAAAAAAAAAA=",
        "4/4/AAAAAAAAAA+=",
        "4/4/AAAAAAAAAAA",
        "4/4/AAAAAAAAAAA=\n",
        "9999999999/16/",
        "4/4/" + "A" * 5000,
    ],
)
def test_what_no_pod_sends_is_one_clear_error(value):
    with pytest.raises(PromptError, match=r"tokens/block size/keys|block keys|blocks"):
        decode_prompt(value)


@given(st.text(alphabet="0123456789/AZaz-_=+ ", max_size=60) | st.text(max_size=60))
def test_any_text_is_decoded_or_refused(value):
    try:
        prompt = decode_prompt(value)
    except PromptError:
        return
    assert len(prompt.marks) <= MAX_KEYS
    assert all(0 < position <= prompt.tokens and len(key) == 8 for position, key in prompt.marks)
