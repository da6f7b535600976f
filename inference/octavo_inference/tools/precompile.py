"""Compiles kernels without a GPU, for servers that start later: `octavo_inference.tools.precompile`.

The image build of `octavo-server` runs it. For each compute capability and model shape, it builds the CUDA backend over
weights without numbers. The backend's own `warm_up` then runs on a driver that launches nothing. So Triton compiles the
kernels that a server looks up (`ops.cuda.kernel_cache`). There is no list of kernels to maintain: a new kernel is
included automatically.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor as Torch
from torch.overrides import TorchFunctionMode

from octavo_inference.backends.cuda.aot import kernel_cache
from octavo_inference.backends.cuda.aot.formats import FORMATS, zeros
from octavo_inference.backends.cuda.aot.null_driver import SHARED_KIB, NullDriver
from octavo_inference.backends.cuda.aot.shapes import SHAPES
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup
from octavo_inference.backends.cuda.device import FP8_CAPABILITY, Device, dotted
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.config.engine import GPU_PROFILES, KvDtype, ProfileName
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Weights

CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0")
# Shapes of the most common models. Each further name in `SHAPES` takes half a minute of compilation per card.
USUAL = (
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.1-8b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
)
# Decode attention splits keys into a power of two of parts, up to the number that fills the card. With more
# multiprocessors than any card has, and sequences long enough for the largest split, every split gets compiled.
_PROCESSORS, _POSITIONS = 192, 32_768
_BLOCKS = 16
# Slots and largest rank of adapters: the API's defaults. Servers with others compile a few kernels when they start.
_ADAPTERS, _RANK = 8, 64


@dataclass(frozen=True, slots=True)
class CompileJob:
    """Kernels of a model for a kind of card: a name of `SHAPES`, the KV cache format and the weight format.

    `weights`: format to which bfloat16 weights of a file are converted, or one of `FORMATS`, in which a checkpoint is
    published. `ranks`: number of such cards that share the model.
    """

    capability: tuple[int, int]
    model: str
    kv_dtype: KvDtype
    weights: str
    ranks: int = 1

    def __str__(self) -> str:
        shared = f" over {self.ranks} GPUs" if self.ranks > 1 else ""
        return f"{dotted(self.capability)} {self.model}{shared}, KV {self.kv_dtype}, weights {self.weights}"


class _Absent(RankGroup):
    """Stub of a rank group without the other ranks: no collective waits, and its results are not used."""

    def all_reduce(self, x: Torch) -> None:
        """Multiply by the group size: the sum if all ranks had the same x."""
        x.mul_(self.size)

    def gather(self, logits: Torch, gathered: Torch) -> None:
        """Leave the logits unchanged."""


class _Launched:
    """Stub of a CUDA graph: runs its work once at capture; a replay launches nothing."""

    bytes = 0

    def __init__(self, work: Callable[[], object]) -> None:
        work()

    def replay(self) -> None:
        """Do nothing: the kernels are compiled already."""


class _NoNumbers(TorchFunctionMode):
    """Skips torch's work on the numbers in tensors: it compiles no Triton kernels, and no result is used.

    So nearly no page of weights and buffers is ever written: a model of any size takes little memory.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = kwargs or {}, getattr(func, "__name__", "")
        if name in {"mm", "addmm", "bmm", "_scaled_mm", "index_select"} and "out" in given:
            return given["out"]
        if name == "copy_":
            return args[0]
        return (torch.empty if func is torch.zeros else func)(*args, **given)


def jobs_of(
    capability: str,
    models: Iterable[str],
    kv_dtypes: Iterable[KvDtype],
    weights: Iterable[str],
    ranks: Iterable[int] = (1,),
) -> list[CompileJob]:
    """All jobs of these combinations that the card supports."""
    major, _, minor = capability.partition(".")
    found = [CompileJob((int(major), int(minor)), *one) for one in product(models, kv_dtypes, weights, ranks)]
    return [
        job
        for job in found
        if (job.kv_dtype != "fp8" or job.capability >= FP8_CAPABILITY) and SHAPES[job.model].heads % job.ranks == 0
    ]


def warm_up(job: CompileJob, profile: ProfileName = "balanced") -> kernel_cache.CacheUse:
    """Make Triton compile the kernels of a job's server into TRITON_CACHE_DIR. The process needs a `NullDriver`."""
    whole = SHAPES[job.model]
    published = job.weights if job.weights in FORMATS else None
    quantization: Quantization = "fp8" if job.weights == "fp8" else "auto"
    config, weights = shard(whole, zeros(whole, published), rank=0, size=job.ranks)
    group = _Absent(0, job.ranks)
    return rehearse(config, weights, job.capability, job.kv_dtype, quantization, profile=profile, group=group)


def rehearse(
    config: ModelConfig,
    weights: Weights,
    capability: tuple[int, int],
    kv_dtype: KvDtype = "auto",
    quantization: Quantization = "auto",
    *,
    profile: ProfileName = "balanced",
    group: RankGroup = ALONE,
) -> kernel_cache.CacheUse:
    """Make Triton compile the kernels of a model's server. The process needs a `NullDriver`."""
    sizes = GPU_PROFILES[profile]
    with kernel_cache.watched() as found, _NoNumbers():
        backend = CudaBackend.create(
            config,
            weights,
            device=Device(torch.device("cpu"), "null", capability, _PROCESSORS, 0, 0),
            num_blocks=_BLOCKS,
            max_batched_tokens=sizes.max_batched_tokens,
            max_running=sizes.max_running_requests,
            max_model_len=_POSITIONS,
            adapter_slots=_ADAPTERS,
            max_adapter_rank=_RANK,
            dtype=torch.bfloat16,
            kv_dtype=kv_dtype,
            quantization=quantization,
            group=group,
            capture=_Launched,
        )
        backend.warm_up()
        while backend.idle():
            pass
    # A backend is part of reference cycles, so its buffers would stay until Python looks for some.
    del backend
    gc.collect()
    return found


def fill(folder: Path, jobs: Sequence[CompileJob]) -> list[str]:
    """Run the jobs, all of one capability, in this process. Returns a line about each."""
    torch.set_num_threads(1)
    triton.knobs.cache.dir = str(folder)
    triton.knobs.compilation.store_binary_only = True
    major, minor = jobs[0].capability
    NullDriver(10 * major + minor).activate()
    lines = []
    for job in jobs:
        began = time.process_time()
        found = warm_up(job)
        gc.collect()  # a backend is in cycles: the next job would start beside it
        seconds = time.process_time() - began
        lines.append(f"{job}: {found.compiled} kernels compiled in {seconds:.0f} s, {found.ready} were there")
        print(lines[-1], flush=True)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: fill a folder with compiled kernels."""
    parser = argparse.ArgumentParser(prog="python -m octavo_inference.tools.precompile", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder to fill")
    known = tuple(dotted(divmod(one, 10)) for one in SHARED_KIB)
    add("--capability", nargs="+", default=CAPABILITIES, choices=known, help="cards to compile for")
    add("--model", nargs="+", default=USUAL, choices=tuple(SHAPES), help="shapes of models")
    add("--kv-dtype", nargs="+", default=("auto",), choices=("auto", "fp8", "int8"), help="how K and V are kept")
    add(
        "--weights", nargs="+", default=("auto",), choices=("auto", "fp8", *FORMATS),
        help="how bfloat16 weights are kept, or the format of a published checkpoint",
    )  # fmt: skip
    add(
        "--tensor", nargs="+", type=int, default=(1,), metavar="N", help="GPUs that share a model; those that divide it"
    )
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; one computes for one capability")
    given = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit("TRITON_INTERPRET is set: interpreted kernels are not compiled; unset it")
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    jobs = [jobs_of(one, given.model, given.kv_dtype, given.weights, given.tensor) for one in given.capability]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(fill, given.out, together) for together in jobs if together]:
            done.result()
    kernel_cache.trim(given.out)
    sizes = [file.stat().st_size for file in given.out.rglob("*.cubin")]
    total = sum(file.stat().st_size for file in given.out.rglob("*") if file.is_file())
    print(f"{len(sizes)} kernels, {total / 2**20:.0f} MiB, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
