"""Paged attention against attention written out, over shapes that fit no tile."""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from bench.gpu.cases.paged import SENTINEL, Paged, expected, launcher, make, run, split
from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile, attention_tile
from octavo_inference.backends.cuda.kernels.rope_and_cache import rope_store

from .conftest import Record

# float32 sums in another order; the values are of size one.
EXACT = 2e-5
SMALL = AttentionTile(rows=16, keys=16, warps=4, stages=2)
WIDE = AttentionTile(rows=64, keys=32, warps=4, stages=2)


def lengths(block: int) -> list[tuple[int, int]]:
    """(tokens, query tokens): a prompt, a chunk, decodes, and rows without work, at the edges of blocks."""
    return [(1, 1), (block - 1, block - 1), (40, 0), (block, 1), (block + 1, 7), (0, 0), (3 * block + 1, 1)]


def decodes(block: int) -> list[tuple[int, int]]:
    """What is split into parts: some shorter than a share, one whose last key tile holds one key, and an empty one."""
    return [(3 * block + 1, 1), (1, 1), (0, 0), (6 * block, 1)]


def parts_of(sequences: list[tuple[int, int]], shares: int, unused: int = 2) -> torch.Tensor:
    """Parts with shares of at least 16 keys, as the smallest tile here, and some that the launch has no use for."""
    return torch.nn.functional.pad(split(sequences, shares=shares, least_keys=16), (0, 0, 0, unused))


def compare(record: Record, batch: Paged, shape: str, *, bound: float = EXACT, kernel: str = "attend", **how) -> None:
    only_run = {name: how.pop(name) for name in ("parts", "tile") if name in how}
    error = float((run(batch, **only_run, **how).double() - expected(batch, **how)).abs().max())
    assert error < bound
    record(kernel, shape, batch.pool.data.dtype, error)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block", "tile"),
    [
        (9, 3, 64, 16, SMALL),
        (9, 3, 80, 32, WIDE),
        (14, 2, 96, 16, WIDE),
        (32, 8, 128, 16, WIDE),
        (4, 4, 80, 16, SMALL),
        (8, 1, 256, 32, WIDE),
        (20, 1, 64, 16, None),
    ],
)
def test_ragged_batch(record: Record, heads: int, kv_heads: int, dim: int, block: int, tile) -> None:
    batch = make(lengths(block), heads, kv_heads, dim, block_size=block, padding=3)
    compare(record, batch, f"{heads}/{kv_heads}x{dim}, block {block}", tile=tile)


def test_sequences_lie_in_any_row_of_the_table(record: Record) -> None:
    batch = make(lengths(16), 4, 2, 64, padding=2)
    count = len(batch.seq_len)
    batch.row = torch.randperm(count + 3, generator=torch.Generator().manual_seed(1))[:count].to(torch.int32)
    table = torch.full((count + 3, batch.block_table.shape[1]), 2**31 - 1, dtype=torch.int32)
    table[batch.row.long()] = batch.block_table
    batch.block_table = table
    compare(record, batch, "4/2x64, rows in any order", tile=SMALL)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block", "shares"),
    [(9, 3, 64, 32, 4), (14, 2, 256, 16, 2), (32, 8, 128, 32, 3), (4, 4, 96, 16, 40), (8, 1, 80, 16, 8)],
)
def test_parts(record: Record, heads: int, kv_heads: int, dim: int, block: int, shares: int) -> None:
    batch = make(decodes(block), heads, kv_heads, dim, block_size=block, padding=1)
    shape = f"{heads}/{kv_heads}x{dim}, block {block}, {shares} shares"
    parts = parts_of(decodes(block), shares)
    assert parts[:, 2].max() > 1
    compare(record, batch, shape, parts=parts, tile=SMALL, kernel="attend + reduce_parts")


def test_more_parts_than_are_reduced_at_a_time(record: Record) -> None:
    batch = make([(400, 1), (20, 1)], 4, 2, 64)
    parts = parts_of([(400, 1), (20, 1)], 40)
    assert parts[:, 2].max() == 25
    compare(record, batch, "4/2x64, 25 parts", parts=parts, tile=SMALL, kernel="attend + reduce_parts")


def test_decodes_of_one_part_each_need_no_buffers(record: Record) -> None:
    """As for sequences too short to be split: nothing is reduced."""
    sequences = [(17, 1), (0, 0), (40, 1), (33, 1)]
    batch = make(sequences, 4, 2, 64, padding=1)
    parts = split(sequences, shares=1, least_keys=64)
    assert parts.tolist() == [[2, 0, 1], [3, 0, 1], [0, 0, 1]]
    compare(record, batch, "4/2x64, one part each", parts=parts, tile=SMALL)


def test_only_sequences_with_parts_are_computed() -> None:
    """In a step of decodes and prompts, the launch for decodes leaves the prompts to another one."""
    batch = make([(33, 1), (21, 1), (9, 9)], 4, 2, 64)
    out, launch = launcher(batch, parts=parts_of([(33, 1), (21, 1)], 1), tile=SMALL)
    launch()
    assert (out[:2].double() - expected(batch)[:2]).abs().max() < EXACT
    assert (out[2:] == SENTINEL).all()


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 40])
def test_window(record: Record, window: int, parts: bool) -> None:
    """A window leaves parts of long sequences without keys."""
    sequences = decodes(16) if parts else lengths(16)
    how = {"parts": parts_of(sequences, 40) if parts else None, "window": window}
    compare(record, make(sequences, 4, 2, 64), f"window {window}{', parts' * parts}", tile=SMALL, **how)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("window", [1, 5, 17, 40])
def test_blocks_behind_the_window_are_not_read(record: Record, window: int, parts: bool) -> None:
    """They may be another sequence's by now, or hold NaN."""
    sequences = decodes(16) if parts else [(150, 70), (96, 96), (131, 3), (90, 1)]
    batch = make(sequences, 4, 2, 64)
    wanted = expected(batch, window=window)
    spoilt = next(i for i, block in enumerate(batch.pool.data[0]) if block.isnan().all())
    for i, (length, queries) in enumerate(sequences):
        batch.block_table[i, : max(0, length - queries - window + 1) // 16] = spoilt
    how = {"parts": parts_of(sequences, 40) if parts else None, "window": window, "tile": WIDE}
    error = float((run(batch, **how).double() - wanted).abs().max())
    assert error < EXACT
    record("attend", f"window {window}, blocks behind it freed{', parts' * parts}", batch.pool.data.dtype, error)


@pytest.mark.parametrize("keys", [16, 32])
@pytest.mark.parametrize("window", [None, 24, 60])
def test_masks_are_skipped_for_whole_tiles_only(record: Record, window: int | None, keys: int) -> None:
    """Long chunks: tiles before the window, at its edge, inside, on the diagonal, and after it."""
    batch = make([(150, 70), (96, 96), (131, 3)], 4, 2, 64)
    tile = AttentionTile(rows=32, keys=keys, warps=4, stages=2)
    compare(record, batch, f"4/2x64, chunks, window {window}, {keys} keys", tile=tile, window=window)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(("chunk", "window"), [(16, None), (24, None), (7, None), (24, 9), (64, None)])
def test_chunks(record: Record, chunk: int, window: int | None, parts: bool) -> None:
    """Tokens on both sides of a chunk's border in one tile of queries, and in one tile of keys."""
    sequences = decodes(16) if parts else [(150, 70), (48, 48), (49, 1), (131, 3)]
    batch = make(sequences, 4, 2, 64)
    for tile in (SMALL, WIDE):
        how = {"parts": parts_of(sequences, 40) if parts else None, "tile": tile}
        shape = f"chunk {chunk}, window {window}{', parts' * parts}"
        compare(record, batch, shape, chunk=chunk, window=window, **how)


@pytest.mark.parametrize("parts", [False, True])
def test_blocks_behind_the_chunk_are_not_read(parts: bool) -> None:
    sequences = decodes(16) if parts else [(150, 3), (97, 1), (90, 1)]
    batch = make(sequences, 4, 2, 64)
    wanted = expected(batch, chunk=32)
    spoilt = next(i for i, block in enumerate(batch.pool.data[0]) if block.isnan().all())
    for i, (length, queries) in enumerate(sequences):
        batch.block_table[i, : max(0, length - queries) // 32 * 2] = spoilt
    found = run(batch, chunk=32, parts=parts_of(sequences, 40) if parts else None, tile=WIDE)
    assert float((found.double() - wanted).abs().max()) < EXACT


@pytest.mark.parametrize("parts", [False, True])
def test_slopes(record: Record, parts: bool) -> None:
    """Alone, and with all that a score may have besides; a head without a slope."""
    sequences = decodes(16) if parts else lengths(16)
    batch = make(sequences, 4, 2, 64)
    slopes = torch.tensor([0.5, 0.0, 0.03, 1.5])
    how = {"parts": parts_of(sequences, 4) if parts else None, "tile": SMALL, "slopes": slopes}
    compare(record, batch, f"slopes{', parts' * parts}", **how)
    sinks = torch.tensor([0.0, 3.0, 8.0, -30.0])
    shape = f"slopes, window, softcap, sinks{', parts' * parts}"
    compare(record, batch, shape, softcap=2.0, sinks=sinks, window=20, **how)


@pytest.mark.parametrize("parts", [False, True])
def test_softcap_and_sinks(record: Record, parts: bool) -> None:
    batch = make(decodes(16), 4, 2, 64)
    sinks = torch.tensor([0.0, 3.0, 8.0, -30.0])
    how = {"parts": parts_of(decodes(16), 4) if parts else None, "tile": SMALL}
    split_ = ", parts" * parts
    compare(record, batch, f"softcap{split_}", softcap=2.0, **how)
    compare(record, batch, f"sinks{split_}", sinks=sinks, **how)
    compare(record, batch, f"window, softcap, sinks{split_}", sinks=sinks, softcap=2.0, window=9, **how)


@pytest.mark.parametrize(
    ("kv_dtype", "parts"),
    [
        (torch.float8_e4m3fn, False),
        (torch.float8_e4m3fn, True),
        (torch.int8, False),
        (torch.int8, True),
        (torch.bfloat16, False),
    ],
)
def test_stored_types(record: Record, kv_dtype: torch.dtype, parts: bool) -> None:
    """Against what is stored: dequantising is exact, whatever storing lost."""
    sequences = decodes(16) if parts else lengths(16)
    batch = make(sequences, 14, 2, 80, kv_dtype=kv_dtype)
    # Tiles of 32 keys: half of the parts of 16 have none.
    compare(record, batch, f"14/2x80{', parts' * parts}", parts=parts_of(sequences, 8) if parts else None, tile=WIDE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_two_bytes(record: Record, dtype: torch.dtype) -> None:
    """Rounded once, on the way out: half a unit of the last place (the interpreter truncates bfloat16: a whole one)."""
    batch = make(decodes(16), 9, 3, 64, dtype=dtype)
    compare(record, batch, "9/3x64", tile=SMALL, bound={torch.bfloat16: 2.0**-6, torch.float16: 2.0**-10}[dtype])


@settings(max_examples=scaled(3))
@given(cuts=st.lists(st.integers(1, 36), min_size=1, max_size=2), window=st.sampled_from([None, 7]))
def test_a_prompt_in_chunks_is_the_prompt(cuts: list[int], window: int | None) -> None:
    whole = make([(37, 37)], 4, 2, 64)
    tile = AttentionTile(rows=32, keys=16, warps=4, stages=2)
    at_once = run(whole, tile=tile, window=window)
    edges = sorted({0, 37, *cuts})
    for start, end in itertools.pairwise(edges):
        chunk = Paged(
            q=whole.q[start:end].contiguous(),
            pool=whole.pool,
            block_table=whole.block_table,
            query_start=torch.tensor([0, end - start], dtype=torch.int32),
            seq_len=torch.tensor([end], dtype=torch.int32),
        )
        assert (run(chunk, tile=tile, window=window) - at_once[start:end]).abs().max() < EXACT


@pytest.mark.parametrize(("first", "last"), [(3, 6), (2, 4), (0, 0), (6, 6)])
def test_some_of_a_steps_sequences_apart(first: int, last: int) -> None:
    """The bounds are on the device; all other tokens of `out` stay as they were."""
    whole = make([(33, 1), (5, 1), (40, 1), (21, 4), (37, 17), (9, 9)], 4, 2, 64)
    begin, end = int(whole.query_start[first]), int(whole.query_start[last])
    found = run(whole, tile=SMALL, bounds=torch.tensor([first, last], dtype=torch.int32))
    wanted = torch.full_like(found, SENTINEL)
    wanted[begin:end] = run(whole, tile=SMALL)[begin:end]
    assert (found - wanted).abs().max() < EXACT


def test_blocks_behind_two_to_the_31_elements(record: Record) -> None:
    """What is stored in the last block of a large pool is what attention finds there; the rest is never touched."""
    dim, last = 64, 2**31 // (2 * 16 * 64) + 1
    kv = torch.empty(last + 1, 2, 1, 16, dim, dtype=torch.int8)
    scales = torch.empty(last + 1, 2, 1, 16)
    qkv = torch.randn(2, 3 * dim, generator=torch.Generator().manual_seed(3))
    positions = torch.arange(2, dtype=torch.int32)
    q, out = torch.empty(2, 1, dim), torch.empty(2, 1, dim)
    rope_store(qkv, positions, last * 16 + positions.long(), None, None, None, 1e-5, q, kv, scales)
    table = torch.tensor([[last]], dtype=torch.int32)
    start, length = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    row = torch.zeros(1, dtype=torch.int32)
    attend(q, kv, scales, table, row, start, length, out, scale=0.2, tile=SMALL)
    q, k, v = qkv.view(2, 3, dim).unbind(1)
    weight = torch.softmax((q @ k.T * 0.2).masked_fill(torch.tensor([[False, True], [False, False]]), -torch.inf), -1)
    # A stored value is off by half a step of largest / 127 at most, and so is a score by a few hundredths.
    error = float((out[:, 0] - weight @ v).abs().max())
    assert error < 0.05
    record("rope_store + attend", "1/1x64, block 2**20", torch.int8, error)


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_default_tiles_hold_a_group(monkeypatch: pytest.MonkeyPatch, interpret: bool, dtype: torch.dtype) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpret)
    for group, decode, dim in itertools.product((1, 3, 7, 8, 20), (True, False), (64, 256)):
        tile = attention_tile(dim, group, dtype, decode=decode)
        assert tile.rows >= group
        assert tile.rows.bit_count() == tile.keys.bit_count() == 1
