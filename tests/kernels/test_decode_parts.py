"""How decodes share the GPU: every key in one part, parts as even as key tiles allow, within the launch's size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo_inference.backends.cuda.kernels.decode_parts import (
    LEAST_KEYS,
    decode_parts,
    most_parts,
    most_split,
    shares_for,
)

LONGEST = 20_000
LENGTHS = st.lists(st.one_of(st.integers(0, 2000), st.integers(0, LONGEST)), max_size=80)
SHARES = st.integers(1, 300)


def tiles_of(length: int, part: list[int], keys: int) -> range:
    """The key tiles of a part, as the kernel divides them."""
    _, number, count = part
    tiles = -(-length // keys)
    return range(tiles * number // count, tiles * (number + 1) // count)


@given(lengths=LENGTHS, shares=SHARES, keys=st.sampled_from([16, 32, 64, 128]))
@example(lengths=[], shares=1, keys=64)
@example(lengths=[0, 0], shares=1, keys=64)
def test_every_key_is_in_one_part_and_parts_are_even(lengths: list[int], shares: int, keys: int) -> None:
    parts = decode_parts(np.array(lengths, np.int32), shares=shares).tolist()
    share = max(sum(lengths) / shares, LEAST_KEYS)
    for sequence, length in enumerate(lengths):
        own = [tiles_of(length, part, keys) for part in parts if part[0] == sequence]
        assert list(itertools.chain(*own)) == list(range(-(-length // keys)))
        sizes = [len(part) for part in own]
        assert all(sizes), "a part has at least one tile"
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert max(sizes, default=0) <= 1.25 * share / keys + 2, "a quarter longer than a share, and rounded up"


@given(lengths=LENGTHS, shares=SHARES)
def test_a_launch_has_room_for_all_parts_and_buffers_for_split_ones(lengths: list[int], shares: int) -> None:
    parts = decode_parts(np.array(lengths, np.int32), shares=shares)
    assert len(parts) <= most_parts(len(lengths), shares=shares, longest=LONGEST)
    split = parts[:, 2] > 1
    assert split.sum() <= most_split(shares=shares)
    assert split[: split.sum()].all(), "they come first"
    following = parts[1:][parts[1:, 1] > 0]
    assert (following == parts[:-1][parts[1:, 1] > 0] + [0, 1, 0]).all(), "parts of a sequence follow each other"
    order = np.array(lengths, np.int32)[parts[parts[:, 1] == 0][:, 0]]
    assert (np.diff(order) <= 0).all(), "the longest sequences first"


@given(lengths=st.lists(st.integers(0, LEAST_KEYS), max_size=80), shares=SHARES)
def test_short_sequences_are_never_split(lengths: list[int], shares: int) -> None:
    parts = decode_parts(np.array(lengths, np.int32), shares=shares)
    assert len(parts) == sum(length > 0 for length in lengths)
    assert most_parts(len(lengths), shares=shares, longest=LEAST_KEYS) == len(lengths)


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([131_072], [49]),
        ([2048], [8]),
        ([100], [1]),
        ([1000] * 64, [1] * 64),
        ([8000] + [100] * 30, [31] + [1] * 30),
        ([16_000] + [1000] * 17, [24] + [2] * 17),
    ],
)
def test_parts_fill_the_card(lengths: list[int], counts: list[int]) -> None:
    """Eight KV heads on 132 multiprocessors: 49 shares, three programs for each multiprocessor."""
    shares = shares_for(kv_heads=8, processors=132)
    parts = decode_parts(np.array(lengths, np.int32), shares=shares)
    assert np.bincount(parts[:, 0]).tolist() == counts
