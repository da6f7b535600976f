"""Compiles every kernel for GPUs that are not present, and checks that it fits and does not spill."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict

import torch
from triton.compiler.errors import CompilationError

from bench.gpu import report
from bench.gpu.cases.case import Case, Place
from bench.gpu.null_gpu import NullGpu
from bench.lib.results import Row, Say

META = Place(torch.device("meta"), torch.bfloat16, tiny=False)
STACK_BOUND = 256
"""Upper bound of stack bytes per thread for every kernel: 64 of 255 registers; a spilled tile needs more."""


def compile_cases(
    cases: Iterable[Case], capabilities: Iterable[int], say: Say, gpu: NullGpu | None = None
) -> list[Row]:
    """One row for each kernel that a case launches on a card, or for the error that it raises.

    `gpu`: the active one, by default one that only compiles kernels.
    """
    rows: list[Row] = []
    gpu = gpu or NullGpu(0).activate()
    chosen = list(cases)
    for gpu.capability in capabilities:
        for case in chosen:
            began = time.perf_counter()
            found = _compile(case, gpu)
            seconds = round(time.perf_counter() - began, 2)
            rows += [{"case": case.kernel, "variant": case.variant, "seconds": seconds} | row for row in found]
            say(f"sm_{gpu.capability} {case.kernel:14} {case.variant:44} {seconds:6.1f} s  {_short(found)}")
    return rows


def _compile(case: Case, gpu: NullGpu) -> list[Row]:
    if case.library:
        return []
    before = len(gpu.loaded)
    refused = case.float8 and gpu.capability < 89
    try:
        case.prepare(META).launch()
    except CompilationError as error:
        if refused and "fp8e4nv not supported" in str(error):
            return [{"capability": gpu.capability, "verdict": "refused", "why": "no float8 below 8.9"}]
        return [_failure(gpu, error)]
    except Exception as error:  # noqa: BLE001  the other kernels continue
        return [_failure(gpu, error)]
    if refused:
        return [{"capability": gpu.capability, "verdict": "failed", "why": "compiled, but no float8 was expected here"}]
    # A variant that an earlier case launched is compiled already, and reported with that case.
    return [asdict(binary) | {"verdict": _verdict(binary.stack)} for binary in gpu.loaded[before:]]


def _verdict(stack: int) -> str:
    return "compiled" if stack <= STACK_BOUND else "spills"


def _failure(gpu: NullGpu, error: Exception) -> Row:
    lines = [line for line in str(error).splitlines() if line.strip()]
    why = f"{type(error).__name__}: {lines[-1] if lines else ''}"
    trace = "".join(traceback.format_exception(error))
    return {"capability": gpu.capability, "verdict": "failed", "why": why, "traceback": trace}


def _short(found: list[Row]) -> str:
    if not found:
        return "compiled before"
    return ", ".join(
        f"{row['verdict']}: {row['why']}"
        if "why" in row
        else f"{row['registers']} registers, {row['shared']} B shared, {row['stack']} B stack"
        for row in found
    )


def table(rows: list[Row]) -> str:
    """Format all rows as a Markdown table; shared memory and stack are in bytes."""
    names = ("kernel", "variant", "card", "registers", "shared", "stack", "verdict", "why")
    shown = [{"kernel": row["case"], "card": f"sm_{row['capability']}"} | row for row in rows]
    return "\n".join(report.table(shown, names)) + "\n"
