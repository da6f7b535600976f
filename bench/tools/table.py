"""The tools, and how one is run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.lib.processes import last
from bench.tools import aiperf, guidellm, inference_perf, vllm
from bench.tools.load import Figures, Hub, Target, ToolLoad


@dataclass(frozen=True, slots=True)
class LoadTool:
    """A tool: the arguments for a load, and the figures of a run from its folder.

    `name` is that of its program, its package, and its lock in requirements/clients. `prompts`: it sends given prompts,
    not only its own.
    """

    name: str
    arguments: Callable[[Target, ToolLoad, Hub, Path], list[str]]
    figures: Callable[[Path], Figures]
    prompts: bool = True


GUIDELLM = LoadTool("guidellm", guidellm.arguments, guidellm.figures)
AIPERF = LoadTool("aiperf", aiperf.arguments, aiperf.figures)
INFERENCE_PERF = LoadTool("inference-perf", inference_perf.arguments, inference_perf.figures, prompts=False)
VLLM = LoadTool("vllm", vllm.arguments, vllm.figures)
TOOLS = (GUIDELLM, AIPERF, INFERENCE_PERF, VLLM)


def run(
    tool: LoadTool, programs: Path, target: Target, load: ToolLoad, hub: Hub, folder: Path, seconds: float = 600
) -> Figures:
    """Run a tool from the folder `programs` of its environment. RuntimeError with the end of its log if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    command = [str(programs / tool.name), *tool.arguments(target, load, hub, folder)]
    with log.open("wb") as out:
        done = subprocess.run(
            command, env=variables(target, hub), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            check=False, timeout=seconds,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{tool.name} ended with status {done.returncode}: {last(log, 30)}")
    return tool.figures(folder)


def variables(target: Target, hub: Hub, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a tool: nothing of ours, a cache in place of the hub, and no usage reports."""
    own = {name: value for name, value in given.items() if not name.startswith(("PYTHON", "OPENAI", "VIRTUAL_ENV"))}
    cached = {"HF_HOME": str(hub.home), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    silent = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
    return own | cached | silent | {"OPENAI_API_KEY": target.key}
