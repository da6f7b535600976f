"""A GPU that is not there: Triton compiles for it what it would for a real one, and launches do nothing.

With it as Triton's driver, code that launches kernels makes Triton specialise and compile exactly the variants that it
would on a card, down to the machine code that ptxas writes: of a card Triton asks its compute capability and its shared
memory, and nothing else that a binary or its key in Triton's cache would depend on.

The interface is that of triton/backends/nvidia/driver.py of 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Shared memory that one block can have, by compute capability (CUDA programming guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
MOST_THREADS = 1024


@dataclass(slots=True)
class NullDriver:
    """A Triton driver for a card of compute capability `capability` (90 is 9.0), which is also the card's number."""

    capability: int

    def activate(self) -> Self:
        """Make it the GPU of this process, which must not have TRITON_INTERPRET set."""
        driver.set_active(self)
        return self

    @property
    def utils(self) -> Self:
        """Triton asks these of a module in C."""
        return self

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """Triton keeps what it compiled by device, so each card is a device of its own."""
        return self.capability

    def get_current_stream(self, _device: int) -> int:
        """Nothing runs in it."""
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Triton refuses a kernel that needs more shared memory than this."""
        return {"max_shared_mem": SHARED_KIB[device] * 1024}

    def load_binary(self, _name: str, _cubin: bytes, _shared: int, _device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, most threads a block), as the real one answers."""
        return 0, 0, 0, 0, MOST_THREADS

    def unload_module(self, _module: int) -> None:
        """Nothing was loaded."""

    def launcher_cls(self, _source: Any, _metadata: Any) -> Callable[..., None]:
        """What a launch calls."""
        return lambda *_arguments: None
