"""Programmatic dependent launch: a kernel is set up while the one before it ends, and waits only for its results.

From compute capability 9.0 on. Without it each kernel of a step costs the time that the GPU takes to notice the end of
one grid and to start the next: 1 to 2 microseconds, of which a step of a small model has three hundred.

A kernel that is launched with `launch_options` calls `wait_for_previous` in every program, first of all, and before
that reads nothing but what no kernel writes (weights). Also programs that have nothing to do must call it: a grid that
ended without waiting would release the next one while the grid before it still runs.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from octavo_inference.backends.cuda.kernels.target import HOPPER, capability

GRAPHS = 12030
"""The first CUDA whose graphs hold dependent launches."""


@triton.constexpr_function
def _supported():
    return not triton.knobs.runtime.interpret and cuda_capability_geq(9, 0)


@triton.jit
def wait_for_previous():
    """Wait for the results of all kernels before this one. Then let the next one start, which waits for this one's.

    Does nothing for a GPU without dependent launches, and returns at once in a kernel launched without the options.
    """
    if _supported():
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def launch_options() -> dict[str, bool]:
    """Options of a launch on the current GPU, for kernels that call `wait_for_previous`.

    None where the driver could not put such a launch into a CUDA graph, which would cost more than it gains.
    """
    return {"launch_pdl": True} if capability() >= HOPPER and _in_graphs(_driver()) else {}


def _in_graphs(driver: int) -> bool:
    """Return True for a driver of CUDA 12.3 or newer, or none: kernels are compiled ahead for drivers like that."""
    return driver == 0 or driver >= GRAPHS


@cache
def _driver() -> int:
    """The newest CUDA that the driver knows (13000 is 13.0), 0 without a driver."""
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)  # noqa: SLF001  torch has no public name for it
    return int(ask()) if ask else 0
