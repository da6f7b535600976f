"""The GPU that kernels are compiled for."""

from __future__ import annotations

import triton
from triton.language.target_info import current_target

HOPPER = 90
"""H100, H200: 227 KiB of shared memory for a block, and launches that depend on the kernel before them."""


def capability() -> int:
    """Compute capability times ten (90 is 9.0) of the GPU that Triton uses; 0 for its interpreter, or without a GPU."""
    target = None if triton.knobs.runtime.interpret else current_target()
    return 0 if target is None or target.backend != "cuda" else int(target.arch)
