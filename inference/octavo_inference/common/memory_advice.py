"""Memory for weights and KV: anonymous, zero, in 2 MB pages where the system allows them."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
_SLAB = 32 << 20  # most of it may stay untouched, and then takes no memory


def allocate(size: int) -> NDArray[np.uint8]:
    """`size` zeroed bytes, aligned to 2 MB if they fill a huge page. Pages are allocated on first access."""
    if size < HUGE_PAGE:
        padded = np.zeros(size + 64, np.uint8)
        return padded[-padded.ctypes.data % 64 :][:size]
    # Private: shared anonymous memory gets no huge pages by madvise.
    region = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(region, np.uint8)
    return whole[-whole.ctypes.data % HUGE_PAGE :][:size]


class Arena:
    """Memory for arrays that live equally long. Arrays smaller than a huge page share huge pages."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """`size` zeroed bytes, aligned to 64. Pages are allocated on first access."""
        if size > len(self._free):
            self._free = allocate(max(size, _SLAB))
        taken, self._free = self._free[:size], self._free[-(-size // 64) * 64 :]
        return taken


def release(array: NDArray[np.generic]) -> None:
    """Release the pages of a mapped file between the ends of `array`; the next access reads them again.

    This includes pages between its rows. Arrays that are not read-only views of a mapping are left alone: their pages
    have no other copy.
    """
    root: object = array
    while isinstance(root, np.ndarray):
        root = root.base
    mapping = root.obj if isinstance(root, memoryview) and root.readonly else None
    if not isinstance(mapping, mmap.mmap) or array.size == 0 or min(array.strides, default=0) < 0:
        return
    offset = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = array.itemsize + sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    end = (offset + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, end - first)
