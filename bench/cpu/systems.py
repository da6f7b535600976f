"""The systems by name: start command, warm-up, and installation hint."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from bench.lib.processes import CACHE, ROOT
from octavo_inference.checkpoints.resolve import find_model

VLLM = CACHE / "vllm" / "bin" / "python"
LLAMA = CACHE / "llama" / "bin" / "python"
README = ROOT / "bench" / "README.md"
BF16 = CACHE / "smollm2-bf16"
"""The checkpoint folder of the peers."""


@dataclass(frozen=True, slots=True)
class System:
    """`warm` are commands run once after the start, not counted; `missing` is empty when the system can run."""

    command: list[str]
    warm: tuple[str, ...] = ("load single-8",)
    missing: str = ""


def systems(threads: int, kv_memory: str, *, eager: bool = False) -> dict[str, System]:
    """All systems with this many threads each; `kv_memory` is Octavo's, such as "1Gi".

    `eager`: vLLM without torch.compile, which starts sooner.
    """
    bf16, gguf, number = bf16_folder(), str(find_model("smollm2")), str(threads)
    own = (f"threads={number}", f"kv_memory={kv_memory}")
    server = ("--model", "smollm2", "--threads", number, "--no-prefix-caching", "--kv-memory", kv_memory)
    return {
        "octavo-bf16": System(ours("octavo_offline", bf16, *own)),
        "octavo-4bit": System(ours("octavo_offline", "smollm2", *own)),
        "octavo-4bit-cache": System(ours("octavo_offline", "smollm2", *own, "prefix_caching=true")),
        "octavo-4bit-http": System(ours("octavo_http", *server)),
        "octavo-start": System(ours("octavo_http", "start", *server), warm=("start",)),
        "llama-4bit": _peer("llama.cpp", str(LLAMA), "llama_cpp", gguf, number),
        "roofline": System(ours("roofline", number), warm=()),
    } | {
        f"vllm-{dtype}": _peer("vLLM", str(VLLM), "vllm_cpu", bf16, number, dtype, *["eager"] * eager)
        for dtype in ("float32", "bfloat16")
    }


def bf16_folder() -> str:
    """SmolLM2 as the peers' bf16 folder, written at first use."""
    from bench.lib.checkpoint import smollm2  # noqa: PLC0415 (loads the model: only when there is something to write)

    return str(BF16 if (BF16 / "config.json").exists() else smollm2(BF16))


def ours(runner: str, *arguments: str) -> list[str]:
    """The command of a runner in this Python."""
    return [sys.executable, "-m", f"bench.cpu.runners.{runner}", *arguments]


def _peer(name: str, python: str, runner: str, *arguments: str) -> System:
    absent = not (VLLM if name == "vLLM" else LLAMA).exists()
    missing = f"no {name} at {python}; {README} says how to install it there" if absent else ""
    return System([python, *ours(runner, *arguments)[1:]], missing=missing)
