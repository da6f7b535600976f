"""Where weights and KV live."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from octavo_inference.common.memory_advice import HUGE_PAGE, Arena, allocate, release


@pytest.mark.parametrize("size", [1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 17])
def test_memory_is_zero_writable_and_aligned(size: int) -> None:
    memory = allocate(size)
    assert memory.nbytes == size
    assert not memory.any()
    assert memory.ctypes.data % (HUGE_PAGE if size >= HUGE_PAGE else 64) == 0
    memory[:] = 255


def test_arrays_of_an_arena_share_pages_and_no_byte() -> None:
    arena = Arena()
    sizes = [1, 64, 100_000, 0, HUGE_PAGE + 5, 3, 40 * HUGE_PAGE, 7]
    arrays = [arena.allocate(size) for size in sizes]
    for number, array in enumerate(arrays):
        assert not array.any()
        assert array.ctypes.data % 64 == 0
        array[:] = number + 1
    assert [array.nbytes for array in arrays] == sizes
    assert all((array == number + 1).all() for number, array in enumerate(arrays))
    assert arrays[4].ctypes.data - arrays[0].ctypes.data < HUGE_PAGE


def resident(address: int) -> int:
    """Kilobytes of the mapping at `address` that this process holds."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0]:
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            found = begin <= address < end
        elif found and fields[0] == "Rss:":
            return int(fields[1])
    raise AssertionError("not mapped")


def test_what_was_packed_leaves_memory_and_can_be_read_again(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.uint32)
    (tmp_path / "weights").write_bytes(values.tobytes())
    with (tmp_path / "weights").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapping, np.uint8)[4096:-5000].view(np.uint16)
    assert view.any()
    before = resident(view.ctypes.data)
    release(view)
    assert before - resident(view.ctypes.data) >= 1000
    np.testing.assert_array_equal(np.frombuffer(mapping, np.uint32), values)


def test_columns_give_back_what_lies_between_their_ends(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.uint32).reshape(256, 1024)
    (tmp_path / "weights").write_bytes(values.tobytes())
    with (tmp_path / "weights").open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapping, np.uint32).reshape(256, 1024)[:, 512:]
    assert view.any()
    before = resident(view.ctypes.data)
    release(view)
    assert before - resident(view.ctypes.data) >= 1000
    np.testing.assert_array_equal(view, values[:, 512:])


def test_memory_without_a_file_behind_it_is_not_given_back() -> None:
    memory = allocate(HUGE_PAGE)
    memory[:] = 7
    release(memory)
    plain = np.full(100_000, 7)
    release(plain)
    assert (memory == 7).all()
    assert (plain == 7).all()
