"""Resources of compiled kernels, without a GPU (`octavo_inference.backends.cuda.aot.null_driver`).

Calling the wrappers of backends/cuda/kernels with tensors on the `meta` device (sizes, but no memory) makes Triton
compile the variants that the engine launches. cuobjdump, which comes with Triton, reads the resources from the machine
code.
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
"""Registers of a multiprocessor; a block that needs more cannot start."""


@dataclass(frozen=True, slots=True)
class Binary:
    """Resources of a compiled kernel: registers and bytes of stack per thread, bytes of shared memory per block.

    `threads` is the maximum per block with this many registers. The stack holds spilled registers, and arrays that do
    not fit into registers.
    """

    kernel: str
    capability: int
    registers: int
    stack: int
    shared: int
    threads: int


@dataclass(slots=True)
class NullGpu(NullDriver):
    """A Triton driver that records compiled kernels in `loaded`."""

    loaded: list[Binary] = field(default_factory=list)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, maximum threads per block), as the real driver returns."""
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
