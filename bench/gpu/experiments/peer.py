"""Other engines on nano-vllm's load, each in a process of its own, where they are installed.

They read a folder of random weights of the same shape, or generate their own where they can. They complete the same
prompts with the same numbers of tokens at temperature 0.6.
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

from bench.gpu.experiments.setting import Setting
from bench.gpu.serving import checkpoint, the_load
from bench.lib.processes import group, last
from bench.lib.results import Item, Row, read

LIMIT, PATIENCE = 400.0, 3.0
"""Timeouts in seconds: for an engine (less than the job's limit), and to end."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine: the required module, and the runner that drives it."""

    module: str
    runner: str


PEERS = {"vLLM": Peer("vllm", "bench.gpu.runners.vllm_gpu")}


def items(setting: Setting) -> Iterator[Item]:
    """Each engine with each model."""
    for model in setting.models:
        for name, peer in PEERS.items():
            yield Item(f"{model} {name}", partial(run, setting, model, name, peer))


def run(setting: Setting, model: str, name: str, peer: Peer) -> Row:
    """An engine's throughput in its last round. Refused where it is not installed."""
    row: Row = {"model": model, "engine": name}
    if importlib.util.find_spec(peer.module) is None:
        return row | {"verdict": "refused", "why": f"{name} is not installed here (no module {peer.module})"}
    folder, load = checkpoint(setting, model), the_load(setting)
    given, result, log = folder / "load.json", folder / "peer.json", folder / "peer.log"
    words = {"folder": str(folder), "prompts": load.prompts, "outputs": load.outputs, "result": str(result)}
    given.write_text(json.dumps(words), encoding="utf-8")
    result.unlink(missing_ok=True)
    # The settings of our own Triton must not affect theirs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-m", peer.runner, str(given)]
    with group(command, log, PATIENCE, mode="w", env=env) as process:
        try:
            status: int | str = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            status = f"none after {LIMIT:.0f} s"
    found = read(result)
    if found is None:
        raise RuntimeError(f"{name} ended with status {status}: {last(log)}")
    return row | found | {"tokens_per_s": found["tokens"] / found["rounds_s"][-1]}
