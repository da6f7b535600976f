"""One measurement from its arguments to its file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch
from journal import Item, opened
from parts.setting import Setting
from roofline import Rates, data_sheet
from shapes import MODELS
from timing import peaks, timer

TOGETHER = ("load", "decode", "ttft", "timeline")
"""Parts that one engine over several GPUs can do."""


def measure(given: argparse.Namespace, about: dict[str, Any], say: Callable[[str], None]) -> bool:
    """Whether all rows are there now. SystemExit where nothing can be measured, or the GPU is lost."""
    if not given.interpret and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU: run this on a machine that has one, or with --interpret on the CPU")
    if unknown := sorted(set(given.model) - set(MODELS)):
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    models = tuple(given.model or MODELS)
    if given.tensor_parallel_size > 1 and (len(models) > 1 or given.command not in TOGETHER):
        sys.exit(f"--tensor-parallel-size is for one --model, and for {', '.join(TOGETHER)}")
    card = about["host"]["gpu"]["name"] if about["host"]["gpu"] else None
    identity = {
        "part": given.command,
        "models": list(models),
        "interpreted": given.interpret,
        "ranks": given.tensor_parallel_size,
        "card": card,
        "versions": about["versions"],
    }
    journal = opened(given.out, identity, given.seconds, _alive)
    journal.report |= about
    clock, device = timer(interpret=given.interpret), torch.device("cpu" if given.interpret else "cuda")
    if "peaks" not in journal.report:
        journal.report["peaks"] = asdict(peaks(clock, device))
    found, sheet = Rates(**journal.report["peaks"]), None if card is None else data_sheet(card)
    journal.report["data_sheet"] = None if sheet is None else asdict(sheet)
    say(f"{card or 'no GPU: interpreted on the CPU'}; a copy reaches {found.bandwidth / 1e12:.3g} TB/s, a bf16 product "
        f"{found.bf16 / 1e12:.4g} TFLOP/s; {given.seconds:.0f} s for this run")  # fmt: skip
    setting = Setting(models, given.interpret, clock, device, found, sheet, given.folder, given.tensor_parallel_size)
    items: Callable[[Setting], Iterable[Item]] = import_module(f"parts.{given.command}").items
    complete = journal.work(items(setting), say)
    bad = sum(row["verdict"] == "failed" for row in journal.report["rows"])
    say(f"{len(journal.report['rows'])} rows, {bad} failed, {'complete' if complete else 'to be gone on with'}")
    return complete


def _alive() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
