"""Settings of the C library's allocator (glibc), so that a process gives memory back after large requests.

glibc keeps one heap per thread, and it raises the size from which it maps memory each time a larger block is freed.
After a few large requests, tens of megabytes of free memory would stay resident.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_ARENAS = 2
_MAP_BYTES = 256 * 1024
_KEEP_BYTES = 2 * 2**20


def limit_heap() -> bool:
    """Use two heaps, map blocks from 256 KiB on, keep at most 2 MiB free at a heap's end. False without glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    settings = ((_M_ARENA_MAX, _ARENAS), (_M_MMAP_THRESHOLD, _MAP_BYTES), (_M_TRIM_THRESHOLD, _KEEP_BYTES))
    accepted = [library.mallopt(*setting) == 1 for setting in settings]
    return all(accepted)


def trim() -> None:
    """Give free memory inside the heaps back to the system. Takes milliseconds and releases the GIL."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
