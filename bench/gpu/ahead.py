"""Compiles the kernels of one job into TRITON_CACHE_DIR, for a card that is not here: `python -m bench.gpu.ahead`.

    check I N       every Nth case of `check --quick`, from the Ith
    engine NAME     an engine of `check`
    model NAME [F]  a measured model, as its engine launches it; its layers in one of `aot.formats.FORMATS`
    tiles NAME      the tiles that `tiles --only attention` tries; also `anchors NAME` and `formats NAME`
    expert_tiles I N  every Nth row of `expert_tiles`, from the Ith

`bench.gpu.pack` starts it, with the Python, torch and Triton versions of the machine that has the card: Triton's key of
a kernel contains its own version.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench.gpu import checked_models, measured_models
from bench.gpu.cases import chosen
from bench.gpu.compiling import META, compile_cases
from bench.gpu.experiments.setting import Setting
from bench.gpu.null_gpu import NullGpu
from bench.gpu.roofline import PUBLISHED
from bench.gpu.timing import Wall
from bench.lib.results import GOOD, attempt
from octavo_inference.backends.cuda.aot.formats import zeros
from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.precompile import rehearse

ATTENTION = "attention"


@dataclass(slots=True)
class LaunchingGpu(NullGpu):
    """A GPU that launches nothing and also compiles launchers: Triton before 3.7 has one in C for each signature."""

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Compile the launcher into the cache."""
        driver = import_module("triton.backends.nvidia.driver")
        driver.CudaLauncher(source, metadata)
        return lambda *_: None


def jobs(parts: int) -> list[tuple[str, ...]]:
    """All jobs, in the order of their use; the cases of `check` in so many parts."""
    models, others = tuple(measured_models.DENSE), sorted(measured_models.MODELS.keys() - measured_models.DENSE.keys())
    found: list[tuple[str, ...]] = [("check", str(i), str(parts)) for i in range(parts)]
    found += [("engine", name) for name in checked_models.MODELS]
    found += [("model", name) for name in (*models, *others)] + [("model", "qwen3-30b-a3b", "int4-32")]
    found += [("tiles", name) for name in models]
    found += [("anchors", "llama-8b"), ("formats", "llama-8b")]
    return found + [("expert_tiles", str(i), str(parts)) for i in range(parts)]


def run(gpu: NullGpu, kind: str, *given: str) -> None:
    """Compile the kernels of a job. One that does not compile fails again at its launch, which reports it."""
    if kind == "check":
        part, parts = map(int, given)
        for row in compile_cases(chosen((), quick=True)[part::parts], [gpu.capability], lambda _: None, gpu):
            if row["verdict"] not in GOOD:
                print(f"{row['case']} {row['variant']}: {row.get('why', row['verdict'])}", flush=True)
    elif kind == "engine":
        engine(checked_models.MODELS[given[0]], gpu.capability)
    elif kind == "model":
        engine(one_of_each(measured_models.MODELS[given[0]]), gpu.capability, *given[1:])
    elif kind == "expert_tiles":
        first, parts = map(int, given)
        experiment(kind, "llama-8b", slice(first, None, parts))
    else:
        experiment(kind, given[0])


def one_of_each(config: ModelConfig) -> ModelConfig:
    """The model with one layer of each kind."""
    if not config.parts:
        return replace(config, layers=1)
    parts = tuple(dict.fromkeys(config.parts))
    return replace(config, layers=len(parts), parts=parts, rotated=config.rotated[: len(parts)])


def engine(config: ModelConfig, capability: int, format_: str | None = None) -> None:
    """Kernels of a server of this shape."""
    positions = 1 << 16 if config.learned_positions else 0  # rehearsals are long
    config = replace(config, learned_positions=positions)
    rehearse(config, zeros(config, format_), divmod(capability, 10))


def experiment(part: str, model: str, some: slice = slice(None)) -> None:
    """Kernels of an experiment, whose launches do nothing: tensors on `meta` have sizes and no memory."""
    only = (ATTENTION,) if part == "tiles" else ()
    setting = Setting((model,), False, Wall(), META.device, PUBLISHED, None, Path(), only=only)
    for item in list(import_module(f"bench.gpu.experiments.{part}").items(setting))[some]:
        row = attempt(item.run)
        if "why" in row:
            print(f"{item.key}: {row['why']}", flush=True)


def main() -> None:
    capability, *job = sys.argv[1:]
    torch.set_num_threads(1)
    sys.setdlopenflags(os.RTLD_LAZY)  # launchers load although the driver's functions are not here
    began, gpu = time.monotonic(), LaunchingGpu(int(capability)).activate()
    run(gpu, *job)
    print(f"{' '.join(job)}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
