"""Other engines on nano-vllm's load, each in a process of its own, where they are installed.

They read a folder of random weights of the same shape, or make their own where they can, and answer the same prompts
with the same number of tokens at temperature 0.6.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from journal import Item, Row
from processes import group
from serving import checkpoint, nano_vllm, small_load

from parts.setting import Setting

PROGRAMS = Path(__file__).resolve().parents[1] / "peers"
LIMIT, PATIENCE = 400.0, 3.0
"""Seconds for an engine, below those of its job, and to end in."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine: the module that must be importable, our program that drives it, and which models it knows."""

    module: str
    program: str
    prefix: str = ""


PEERS = {
    "vLLM": Peer("vllm", "with_vllm.py"),
    "nano-vllm": Peer("nanovllm", "with_nano_vllm.py", prefix="qwen3"),
    "transformers, continuous batching": Peer("transformers", "with_transformers.py"),
}


def items(setting: Setting) -> Iterator[Item]:
    """Each engine with each model."""
    for model in setting.models:
        for name, peer in PEERS.items():
            yield Item(f"{model} {name}", partial(run, setting, model, name, peer))


def run(setting: Setting, model: str, name: str, peer: Peer) -> Row:
    """What an engine said of its last round. Refused where it is not installed or does not know the model."""
    row: Row = {"model": model, "engine": name}
    if importlib.util.find_spec(peer.module) is None:
        return row | {"verdict": "refused", "why": f"{name} is not installed here (no module {peer.module})"}
    if not model.startswith(peer.prefix):
        return row | {"verdict": "refused", "why": f"{name} knows {peer.prefix} models only"}
    folder = checkpoint(setting, model)
    load, result = small_load() if setting.interpret else nano_vllm(), folder / "peer.json"
    given = {"folder": str(folder), "prompts": load.prompts, "outputs": load.outputs, "result": str(result)}
    (folder / "load.json").write_text(json.dumps(given), encoding="utf-8")
    result.unlink(missing_ok=True)
    log = folder / "peer.log"
    command = [sys.executable, str(PROGRAMS / peer.program), str(folder / "load.json")]
    # What we tell our own Triton is not for theirs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    with group(command, log, PATIENCE, mode="w", env=env) as process:
        try:
            status: int | str = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            status = f"none after {LIMIT:.0f} s"
    if not result.exists():
        last = " ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
        raise RuntimeError(f"{name} ended with status {status}: {last}")
    found: Row = json.loads(result.read_text(encoding="utf-8"))
    return row | found | {"tokens_per_s": found["tokens"] / found["rounds_s"][-1]}
