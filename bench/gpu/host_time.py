"""The host's CPU time per step of the CUDA backend, on no GPU: python -m bench.gpu.host_time.

Triton compiles for a GPU that is not there and launches nothing, and torch's operations run on the `meta` device, which
has sizes but no memory. So what remains is the host's own work: a floor, to which a GPU adds the driver's. A product is
an empty Python function, which costs the host about as much as cuBLAS's launch. The smallest CPU time of many steps is
printed, in milliseconds, launched kernel by kernel and as graphs that do nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from bench.gpu.checked_models import QWEN3, random_weights
from bench.gpu.null_gpu import NullGpu
from bench.gpu.steps import entered, step_of
from octavo_inference.backends.cuda import staging
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import Device
from octavo_inference.core.model_input import RowStep

# The layers of Qwen3-0.6B; their width changes nothing for the host.
MODEL = replace(QWEN3, layers=28, hidden=256, intermediate=512, vocab=4096)
STEPS = {"64 decodes": [1] * 64, "64 decodes and 448": [1] * 64 + [448], "512": [512]}
_LENGTH = 2048


class NullGraph:
    """A graph whose replay launches nothing."""

    bytes = 0

    def __init__(self, work: Callable[[], object]) -> None:
        work()

    def replay(self) -> None:
        """Do nothing."""


def backend(capture: type[NullGraph] | None) -> CudaBackend:
    """28 layers on the `meta` device, for up to 64 and a few sequences."""
    found = CudaBackend.create(
        MODEL, random_weights(MODEL), device=Device(torch.device("meta"), "null", (9, 0), 132, 0, 0), num_blocks=64,
        max_batched_tokens=2048, max_running=96, max_model_len=_LENGTH, dtype=torch.bfloat16, capture=capture,
    )  # fmt: skip
    if found.graphs is not None:
        found.graphs.start()
    while found.idle():
        pass
    return found


def step(lengths: list[int], *, enter: bool) -> RowStep:
    """Sequences of these many query tokens after 100 others, all sampled. With `enter`, their rows are filled first."""
    after = [length + 100 for length in lengths]
    filled = enumerate(after if enter else ())
    changes = [entered(i, np.zeros(n, np.int32), 0, np.zeros(-(-n // 16), np.int32)) for i, n in filled]
    return step_of(lengths, after, list(itertools.chain.from_iterable(changes)))


def milliseconds(engine: CudaBackend, lengths: list[int], repeats: int) -> float:
    """The smallest CPU time of a launch."""
    engine.launch(step(lengths, enter=True))
    given, least = step(lengths, enter=False), float("inf")
    for _ in range(repeats):
        began = time.thread_time()
        engine.launch(given)
        least = min(least, time.thread_time() - began)
    return 1000 * least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="launches of each step (default: %(default)s)")
    given = parser.parse_args()
    NullGpu(90).activate()
    products = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    products.impl("mm.out", lambda _x, _weights, *, out: out, "Meta", allow_override=True)  # type: ignore[no-untyped-call]
    products.impl("mm.dtype_out", lambda _x, _weights, _dtype, *, out: out, "Meta", allow_override=True)  # type: ignore[no-untyped-call]
    # Results cannot leave the `meta` device.
    staging.Ring.receive = lambda self, values: self._pieces[0][: values.nbytes].view(values.dtype)  # type: ignore[method-assign]
    eager, graphs = backend(None), backend(NullGraph)
    print("| step | launched, ms | graph, ms |\n|---|--:|--:|")
    for name, lengths in STEPS.items():
        print(
            f"| {name} | {' | '.join(f'{milliseconds(one, lengths, given.repeats):.2f}' for one in (eager, graphs))} |"
        )


if __name__ == "__main__":
    main()
