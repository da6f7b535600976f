"""vLLM on nano-vllm's load, in a process of its own, where it is installed.

It has random weights of the same shape, and completes the same prompts with the same numbers of tokens at temperature
0.6.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from bench.gpu.experiments.setting import Setting
from bench.gpu.serving import checkpoint, the_load
from bench.lib.processes import group, last
from bench.lib.results import Item, Row, read

LIMIT, PATIENCE = 400.0, 3.0
"""Timeouts in seconds: for an engine (less than the job's limit), and to end."""


def items(setting: Setting) -> Iterator[Item]:
    """Each model."""
    for model in setting.models:
        yield Item(f"{model} vLLM", partial(run, setting, model))


def run(setting: Setting, model: str, engine: str = "vllm", runner: str = "bench.gpu.vllm_load") -> Row:
    """The throughput of an engine's last round, by a module that runs it. Refused where it is not installed."""
    row: Row = {"model": model, "engine": engine}
    if importlib.util.find_spec(engine) is None:
        return row | {"verdict": "refused", "why": f"{engine} is not installed here"}
    folder, load = checkpoint(setting, model), the_load(setting)
    given, result, log = folder / "load.json", folder / "peer.json", folder / "peer.log"
    words = {"folder": str(folder), "prompts": load.prompts, "outputs": load.outputs, "result": str(result)}
    given.write_text(json.dumps(words), encoding="utf-8")
    result.unlink(missing_ok=True)
    # The settings of our own Triton must not affect theirs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, "-m", runner, str(given)]
    with group(command, log, PATIENCE, mode="w", env=env) as process:
        try:
            status: int | str = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            status = f"none after {LIMIT:.0f} s"
    found = read(result)
    if found is None:
        raise RuntimeError(f"{engine} ended with status {status}: {last(log)}")
    return row | found | {"tokens_per_s": found["tokens"] / found["rounds_s"][-1]}
