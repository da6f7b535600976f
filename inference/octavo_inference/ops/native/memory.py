"""Memory for weights and KV: anonymous, zero, in 2 MB pages where the system allows them."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20


def allocate(size: int) -> NDArray[np.uint8]:
    """`size` zeroed bytes, aligned to 2 MB when they fill a page of that size. Pages appear when first touched."""
    if size < HUGE_PAGE:
        padded = np.zeros(size + 64, np.uint8)
        return padded[-padded.ctypes.data % 64 :][:size]
    # Private: shared anonymous memory gets no huge pages by madvise.
    region = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(region, np.uint8)
    return whole[-whole.ctypes.data % HUGE_PAGE :][:size]
