"""Instructions of compiled kernels, for `test_compiles.py`: python -m tests.kernels.machine_code CAPABILITY

Prints one JSON row per kernel: the case and the number of each instruction by its first part (`HMMA`), and of float
arithmetic that flushes denormals (`ftz`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

# Compiled kernels are cached by content, as by `bench.gpu compile`.
os.environ.setdefault(
    "TRITON_CACHE_DIR", str(Path(os.environ.get("OCTAVO_CACHE") or "~/.cache/octavo").expanduser() / "triton")
)

from bench.gpu.cases.attention import DECODE, FEW, PREFILL, Attention
from bench.gpu.cases.experts import GPT_OSS, QWEN3_30B, Products
from bench.gpu.cases.linear import SIZES, Product
from bench.gpu.compiling import META
from bench.gpu.null_gpu import TOOLS, NullGpu
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile

LLAMA = Attention(32, 8, 128, DECODE)
TILE = AttentionTile(rows=16, keys=32, warps=4, stages=2)
CASES = {
    "decode": LLAMA,
    "decode fp8": replace(LLAMA, pool="fp8"),
    "split": replace(LLAMA, batch=FEW, split=True),
    "prompt": replace(LLAMA, batch=PREFILL),
    "prompt of 128 rows": replace(LLAMA, batch=PREFILL, tile=AttentionTile(rows=128, keys=64, warps=8, stages=2)),
    **{f"decode, {n} stages": replace(LLAMA, tile=replace(TILE, stages=n)) for n in (2, 3, 4)},
    "gemv fp8": Product("fp8", 1, *SIZES["gate_up"]),
    "linear fp8": Product("fp8", 64, *SIZES["gate_up"]),
    "gemv fp4": Product("fp4 nvfp4", 1, *SIZES["qkv"]),
    "linear fp4": Product("fp4 nvfp4", 64, *SIZES["qkv"]),
    "gemv int4": Product("int4 q4_k", 1, *SIZES["gate_up"]),
    "expert gemv fp8": Products("fp8", QWEN3_30B, 1),
    "expert linear fp8": Products("fp8", QWEN3_30B, 64),
    "expert gemv fp4": Products("fp4 mxfp4", GPT_OSS, 1),
    "expert prompt": Products("dense", QWEN3_30B, 2048),
}


@dataclass(slots=True)
class Disassembler(NullGpu):
    """A null GPU that keeps the instructions of what it loads."""

    instructions: list[Counter[str]] = field(default_factory=list)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.instructions.append(instructions(cubin))
        return NullGpu.load_binary(self, name, cubin, shared, device)


def instructions(cubin: bytes) -> Counter[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(TOOLS / "nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True)
    names = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text.stdout, re.MULTILINE)
    found = Counter(name.split(".")[0] for name in names)
    found["ftz"] = sum(bool(re.match(r"F(MUL|FMA|ADD)\b.*\.FTZ", name)) for name in names)
    return found


def main() -> None:
    gpu = Disassembler(0).activate()
    gpu.capability = int(sys.argv[1])
    for name, case in CASES.items():
        if gpu.capability < 89 and name == "decode fp8":
            continue  # no float8 there
        before = len(gpu.loaded)
        case.prepare(META).launch()
        for binary, counts in zip(gpu.loaded[before:], gpu.instructions[before:], strict=True):
            print(json.dumps({"case": name, **asdict(binary), "instructions": counts}))


if __name__ == "__main__":
    main()
