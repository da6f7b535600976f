"""Checks every kernel against its reference and measures its time; then checks whole engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from bench.gpu import check_engine, soak
from bench.gpu.cases import chosen
from bench.gpu.cases.case import Case, Pair
from bench.gpu.checked_models import MODELS, SMOLLM2, tiny
from bench.gpu.experiments.setting import Setting
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.library_products import supports_groups
from octavo_inference.models.config import ModelConfig

REPEATS = 20
LOADS = {
    "graphs": (check_engine.WIDE, check_engine.TINY_WIDE),
    "preempted": (check_engine.SWAPPED, check_engine.TINY_SWAPPED),
}


def items(setting: Setting) -> Iterator[Item]:
    """Kernels first: a wrong engine does not tell which kernel is wrong."""
    torch.backends.cuda.matmul.allow_tf32 = False  # otherwise the references would not be in float32
    if setting.part in {None, "kernels"}:
        flush = Flush(setting.device)
        for case in chosen(setting.only, quick=setting.quick):
            yield Item(f"{case.kernel} {case.variant}", partial(check_kernel, setting, flush, case))
    if setting.only:
        return
    if setting.part in {None, "engine"}:
        for model in MODELS:
            yield Item(f"engine {model}", partial(check_model, setting, model))
        for name, loads in LOADS.items():
            yield Item(f"engine {name}", partial(check_tokens, setting, setting.pick(*loads)))
    if setting.part in {None, "soak"}:
        yield Item("soak", partial(check_soak, setting))


def check_kernel(setting: Setting, flush: Flush, case: Case) -> Row:
    """Error, bound, verdict, and on a GPU microseconds (L2 emptied before) and the share of the copy bandwidth."""
    row: Row = {"kernel": case.kernel, "variant": case.variant}
    gpu = setting.device.type == "cuda"
    if case.float8 and gpu and torch.cuda.get_device_capability(setting.device) < (8, 9):
        return row | {"verdict": "refused", "why": "no float8 below compute capability 8.9"}
    if case.groups8 and gpu and not supports_groups(torch.cuda.get_device_capability(), torch.version.cuda):
        return row | {"verdict": "refused", "why": "float8 in groups needs compute capability 9.0 and CUDA 12.9"}
    # Each case draws the same numbers, regardless of the selected cases.
    torch.manual_seed(0)
    trial = case.prepare(setting.place)
    trial.launch()
    absolute, relative = error(trial.pairs())
    row |= {"error": relative, "bound": trial.bound, "max_abs": absolute}
    row["verdict"] = "ok" if relative <= trial.bound else "wrong"
    if gpu:
        seconds = measured(setting.timer, trial.launch, REPEATS, flush)
        row |= {"us": round(seconds * 1e6, 2), "of_copy": round(trial.moved / seconds / setting.peaks.bandwidth, 3)}
    return row


def check_model(setting: Setting, model: str) -> Row:
    """Compare an engine with the reference."""
    config = tiny(MODELS[model]) if setting.interpret else MODELS[model]
    load = setting.pick(check_engine.REAL, check_engine.TINY)
    dtype = setting.place.dtype
    row: Row = {"model": model, "dtype": str(dtype).removeprefix("torch.")}
    return row | check_engine.compare(config, load, dtype, find_device())


def check_tokens(setting: Setting, load: check_engine.Load) -> Row:
    """Compare an engine's tokens with the reference's."""
    return check_engine.compare_tokens(small(setting), load, setting.place.dtype, find_device())


def small(setting: Setting) -> ModelConfig:
    """A model for many tokens: a layer of SmolLM2 with few words, so that the reference keeps up."""
    return tiny(SMOLLM2) if setting.interpret else replace(SMOLLM2, layers=1, vocab=4096)


def check_soak(setting: Setting) -> Row:
    """Compare an engine that overlaps its steps with one that does not, over random requests and aborts."""
    return soak.check(small(setting), setting.pick(soak.REAL, soak.TINY), setting.place.dtype, find_device())


def error(pairs: list[Pair]) -> tuple[float, float]:
    """Largest absolute error, and largest relative to the largest expected value; infinite for an unexpected NaN.

    For integers (tokens, slots, masks) the error is the share of values that differ.
    """
    absolute = relative = 0.0
    for found, expected in pairs:
        if found.shape != expected.shape:
            raise ValueError(f"found the shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
        if not found.dtype.is_floating_point:
            share = float((found != expected.to(found.device)).double().mean())
            absolute, relative = max(absolute, share), max(relative, share)
            continue
        got, want = found.double(), expected.to(found.device).double()
        same = (got == want) | (got.isnan() & want.isnan())  # infinities too
        off = torch.where(same, 0.0, (got - want).abs())
        off = torch.where(off.isnan(), torch.inf, off)
        most = float(off.max()) if off.numel() else 0.0
        finite = want[want.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        absolute, relative = max(absolute, most), max(relative, most / (scale or 1.0))
    return absolute, relative
