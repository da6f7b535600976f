"""A null GPU driver: Triton compiles as for a real GPU, and launches do nothing.

With it as Triton's driver, code that launches kernels makes Triton specialize and compile the same variants as on a
GPU, down to the machine code of ptxas. Triton queries compute capability and shared memory from the driver; no other
property of the GPU affects a binary or its key in Triton's cache.

The interface is that of triton/backends/nvidia/driver.py of 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Maximum shared memory per block, by compute capability (CUDA programming guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
MOST_THREADS = 1024


@dataclass(slots=True)
class NullDriver:
    """A Triton driver for a GPU of compute capability `capability` (90 is 9.0), which is also the device number."""

    capability: int

    def activate(self) -> Self:
        """Make it the GPU of this process, in which TRITON_INTERPRET must not be set."""
        driver.set_active(self)
        return self

    @property
    def utils(self) -> Self:
        """Functions that Triton's driver implements in a C module."""
        return self

    def get_current_target(self) -> GPUTarget:
        """The compilation target."""
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """Triton caches compiled kernels per device, so each compute capability is a device of its own."""
        return self.capability

    def get_current_stream(self, _device: int) -> int:
        """Launches do nothing."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Triton refuses a kernel that needs more shared memory than this."""
        return {"max_shared_mem": SHARED_KIB[device] * 1024}

    def load_binary(self, _name: str, _cubin: bytes, _shared: int, _device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, maximum threads per block), as the real driver returns."""
        return 0, 0, 0, 0, MOST_THREADS

    def unload_module(self, _module: int) -> None:
        """Nothing was loaded."""

    def launcher_cls(self, _source: Any, _metadata: Any) -> Callable[..., None]:
        """The function that a launch calls."""
        return lambda *_arguments: None
