"""The systems by name: start command, warm-up, what they need, and installation hint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.lib import models
from bench.lib.processes import CACHE, LLAMA, ROOT, VLLM
from octavo_inference.checkpoints.resolve import find_model

README = ROOT / "bench" / "README.md"
BF16 = CACHE / "smollm2-bf16"
"""The checkpoint folder of the peers."""
# Of KV pool, buffers and libraries, beside the weights.
_BESIDE = 2 << 30


@dataclass(frozen=True, slots=True)
class System:
    """`warm` are commands run once after the start, not counted; `missing` is empty when the system can run.

    `prepare` writes the model's files unless they exist; `memory` are the bytes that must be available at the start.
    """

    command: list[str]
    warm: tuple[str, ...] = ("load single-8",)
    missing: str = ""
    prepare: Callable[[], object] | None = None
    memory: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def systems(
    threads: int, kv_memory: str, *, eager: bool = False, variants: Sequence[str] = (), scale: int = 1
) -> dict[str, System]:
    """All systems with this many threads each; `kv_memory` is Octavo's, such as "1Gi".

    `eager`: vLLM without torch.compile, which starts sooner. `variants`: of the kernels, each an Octavo of its own,
    named as in "octavo-4bit@avx2". `scale` divides the layers of the larger models.
    """
    found = _built_in(threads, kv_memory, eager=eager)
    for name in models.MODELS:
        found |= _large(name, threads, kv_memory, scale, eager=eager)
    offline = [name for name, system in found.items() if "bench.cpu.runners.octavo_offline" in system.command]
    return found | {
        f"{name}@{variant}": replace(found[name], environment={"OCTAVO_CPU_VARIANT": variant})
        for name in offline
        for variant in variants
    }


def _built_in(threads: int, kv_memory: str, *, eager: bool) -> dict[str, System]:
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


def _large(name: str, threads: int, kv_memory: str, scale: int, *, eager: bool) -> dict[str, System]:
    """The systems of a larger model: 4-bit weights in Octavo and llama.cpp, bf16 in Octavo and vLLM."""
    config = models.config_of(name, scale)
    gguf, bf16 = models.gguf_file(config), models.bf16_folder(config)
    small, large = models.gguf_bytes(config), models.bf16_bytes(config)
    number, own = str(threads), (f"threads={threads}", f"kv_memory={kv_memory}")

    def reads(path: Path, size: int, system: System) -> System:
        write = models.write_gguf if path == gguf else models.write_bf16
        memory = int(1.1 * size) + _BESIDE
        return replace(system, warm=("load stream-4",), memory=memory, prepare=partial(write, config))

    # Tuned with 128 tokens: four such prompts of the largest model are half a minute.
    llama = _peer("llama.cpp", str(LLAMA), "llama_cpp", str(gguf), number, "128", "16")
    found = {
        f"octavo-4bit-{name}": reads(gguf, small, System(ours("octavo_offline", str(gguf), *own))),
        f"octavo-bf16-{name}": reads(bf16, large, System(ours("octavo_offline", str(bf16), *own))),
        f"llama-4bit-{name}": reads(gguf, small, llama),
    }
    for dtype, width in (("float32", 2), ("bfloat16", 1)):
        vllm = _peer("vLLM", str(VLLM), "vllm_cpu", str(bf16), number, dtype, *["eager"] * eager)
        found[f"vllm-{dtype}-{name}"] = reads(bf16, width * large, vllm)
    return found


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
