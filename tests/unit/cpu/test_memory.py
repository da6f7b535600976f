"""Where weights and KV live."""

from __future__ import annotations

import pytest

from octavo_inference.ops.native.memory import HUGE_PAGE, allocate


@pytest.mark.parametrize("size", [1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 17])
def test_memory_is_zero_writable_and_aligned(size: int) -> None:
    memory = allocate(size)
    assert memory.nbytes == size
    assert not memory.any()
    assert memory.ctypes.data % (HUGE_PAGE if size >= HUGE_PAGE else 64) == 0
    memory[:] = 255
