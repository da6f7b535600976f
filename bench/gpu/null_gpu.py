"""A GPU that is not there: Triton compiles for it what it would for a real one, and launches do nothing.

With it as Triton's driver, calling the wrappers of ops/triton with tensors on the `meta` device (sizes, but no memory)
makes Triton specialise and compile exactly the variants that the engine launches, down to the machine code that ptxas
writes. What each takes is read from that code by cuobjdump. Both programs come with Triton.

The interface is that of triton/backends/nvidia/driver.py of 3.9.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Shared memory that one block can have, by compute capability (CUDA programming guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
REGISTERS = 65536
"""Of a multiprocessor; a block that needs more cannot start."""


@dataclass(frozen=True, slots=True)
class Binary:
    """What a compiled kernel takes: registers and bytes of stack per thread, bytes of shared memory per block.

    `threads` is how many a block can have with so many registers. The stack holds
    spilled registers, and arrays that no register can.
    """

    kernel: str
    capability: int
    registers: int
    stack: int
    shared: int
    threads: int


@dataclass(slots=True)
class NullGpu:
    """A Triton driver. `loaded` grows by what is compiled; a card's number is its compute capability (90 is 9.0)."""

    capability: int
    loaded: list[Binary] = field(default_factory=list)

    def activate(self) -> NullGpu:
        """Make it the GPU of this process, which must not have TRITON_INTERPRET set."""
        driver.set_active(self)
        return self

    @property
    def utils(self) -> NullGpu:
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

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, most threads a block), as the real one answers."""
        registers, stack = resources(cubin)
        most = min(1024, REGISTERS // max(registers, 1) // 32 * 32)
        self.loaded.append(Binary(name, device, registers, stack, shared, most))
        return 0, 0, registers, stack // 4, most

    def unload_module(self, _module: int) -> None:
        """Nothing was loaded."""

    def launcher_cls(self, _source: Any, _metadata: Any) -> Callable[..., None]:
        """What a launch calls."""
        return lambda *_arguments: None


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread of the one kernel in a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump names no registers:\n{text}")
    registers, stack, local = (int(number) for number in found.groups())
    return registers, stack + local
