"""Every native family on a GPU: python -m tests.kernels.on_card [I N]

Tiny random models of transformers, in bfloat16, prompts in chunks and then decodes. The yardstick is transformers' own
bfloat16: the error of our logits, beside its float32, may be `MOST` times that. Prints a row for each of every Nth
family from the Ith; exit status 1 if one is wrong. With --compile CC it runs on a CPU and launches nothing: the
kernels are then in TRITON_CACHE_DIR for a card of this compute capability (90 is 9.0).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.ahead import LaunchingGpu
from octavo_inference.backends.cuda.device import Device, find_device

from ..integration.engine.families import (  # noqa: TID252 -- tests are no package
    DENSE,
    EXPERTS,
    FAMILIES,
    HYBRIDS,
    LATENT,
    LATENT_EXPERTS,
    build,
    save,
)
from ..integration.engine.others import OTHERS  # noqa: TID252 -- as above
from .family_logits import computed, created, expected

MOST = 3.0
TABLES = (FAMILIES, DENSE, EXPERTS, HYBRIDS, LATENT, LATENT_EXPERTS)


def models() -> dict[str, Callable[[Path], Any]]:
    """What writes a folder and returns its model, by name."""

    def written(folder: Path, *, family: Any) -> Any:
        model = build(family).bfloat16().float()
        save(model, folder)
        return model

    def bound(family: Any) -> Callable[[Path], Any]:
        return lambda folder: written(folder, family=family)

    # Of Phi-3's divisors transformers takes the short ones for sequences that stay short.
    return {name: bound(each) for table in TABLES for name, each in table.items() if name != "phi3-long"} | dict(OTHERS)


def check(write: Callable[[Path], Any], device: Device) -> dict[str, Any]:
    """Error of all compared logits relative to their size, beside that of transformers in bfloat16."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model = write(Path(folder))
        found = np.array(list(computed(created(Path(folder), device, torch.bfloat16))))
        wanted, rounded = np.array(list(expected(model))), np.array(list(expected(model.bfloat16())))
    size = float(np.linalg.norm(wanted))
    error, own = (float(np.linalg.norm(each - wanted)) / size for each in (found, rounded))
    return {"error": error, "bfloat16": own, "verdict": "ok" if error <= MOST * own + 1e-3 else "wrong"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=int, nargs="*", default=(0, 1))
    parser.add_argument("--compile", type=int, metavar="CC")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.compile:
        sys.setdlopenflags(os.RTLD_LAZY)
        LaunchingGpu(given.compile).activate()
        device = Device(torch.device("cpu"), "null", divmod(given.compile, 10), 132, 0, 0)
    else:
        device = find_device()
    wrong, (first, step) = 0, given.shard
    for name, write in list(models().items())[first::step]:
        began = time.monotonic()
        try:
            row = check(write, device)
        except Exception as error:  # noqa: BLE001  the others continue
            row = {"verdict": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
            traceback.print_exc()
        wrong += row["verdict"] != "ok"
        print(json.dumps({"family": name, **row, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    sys.exit(wrong > 0 and not given.compile)


if __name__ == "__main__":
    main()
