"""What compiled kernels take of a GPU that is not there (`octavo_inference.backends.cuda.aot.null_driver`).

Wrappers of backends/cuda/kernels called with tensors on the `meta` device (sizes, but no memory) make Triton compile
the variants that the engine launches. What each takes is read from its machine code by cuobjdump, which comes with
Triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import triton

from octavo_inference.backends.cuda.aot.null_driver import MOST_THREADS, SHARED_KIB, NullDriver

__all__ = ["REGISTERS", "SHARED_KIB", "TOOLS", "Binary", "NullGpu", "resources"]

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
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
class NullGpu(NullDriver):
    """A Triton driver that remembers what was compiled: `loaded` grows by it."""

    loaded: list[Binary] = field(default_factory=list)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, most threads a block), as the real one answers."""
        registers, stack = resources(cubin)
        most = min(MOST_THREADS, REGISTERS // max(registers, 1) // 32 * 32)
        self.loaded.append(Binary(name, device, registers, stack, shared, most))
        return 0, 0, registers, stack // 4, most


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
