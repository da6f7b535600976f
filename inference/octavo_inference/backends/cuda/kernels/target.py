"""The GPU that kernels are compiled for."""

from __future__ import annotations

import triton
from triton.language.target_info import current_target

HOPPER, NEXT_SMALL = 90, 120
"""Capabilities from 9.0 to below 12.0 are data centre GPUs with 227 KiB of shared memory for a block."""


def capability() -> int:
    """Compute capability times ten (90 is 9.0) of the GPU that Triton uses; 0 for its interpreter, or without a GPU."""
    target = None if triton.knobs.runtime.interpret else current_target()
    return 0 if target is None or target.backend != "cuda" else int(target.arch)


def has_large_shared_memory() -> bool:
    """Return True for a GPU whose blocks may use 227 KiB of shared memory."""
    return HOPPER <= capability() < NEXT_SMALL
