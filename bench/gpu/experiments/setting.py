"""Shared by all experiments: their setting, and the cache of one model between neighbouring rows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import torch

from bench.gpu.cases.case import Place
from bench.gpu.roofline import Rates
from bench.gpu.timing import Timer

Size = TypeVar("Size")
Kept = TypeVar("Kept")


class Keep:
    """Keeps one value that neighbouring rows share, such as a loaded model, and frees it before making the next."""

    def __init__(self) -> None:
        self._name: object = None
        self._value: object = None

    def get(self, name: object, make: Callable[[], Kept]) -> Kept:
        """Return the value of this name, which always has the same type."""
        if self._name != name:
            self._name = self._value = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._value = make()
            self._name = name
        return cast("Kept", self._value)


@dataclass(frozen=True, slots=True)
class Setting:
    """A machine and the selected measurements. `peaks` is the card's measured peak, `sheet` its data sheet where known.

    `interpret`: tiny sizes on the CPU, whose figures mean nothing. `folder` is for large files. `only`, `quick` and
    `part` select the cases of `check`.
    """

    models: tuple[str, ...]
    interpret: bool
    timer: Timer
    device: torch.device
    peaks: Rates
    sheet: Rates | None
    folder: Path
    ranks: int = 1
    only: tuple[str, ...] = ()
    quick: bool = False
    part: str | None = None
    keep: Keep = field(default_factory=Keep)

    @property
    def place(self) -> Place:
        """Device and type of the kernels."""
        return Place(self.device, torch.float32 if self.interpret else torch.bfloat16, tiny=self.interpret)

    def pick(self, real: Size, tiny: Size) -> Size:
        """Return `real`, or `tiny` for the interpreter."""
        return tiny if self.interpret else real

    def shares(self, moved: float, operations: float, seconds: float) -> dict[str, float]:
        """Shares of the measured and of the data sheet's bandwidth and bf16 arithmetic."""
        found = {
            "of_bandwidth": moved / seconds / self.peaks.bandwidth,
            "of_flops": operations / seconds / self.peaks.bf16,
        }
        if self.sheet is not None:
            found["of_sheet_bandwidth"] = moved / seconds / self.sheet.bandwidth
            found["of_sheet_flops"] = operations / seconds / self.sheet.bf16
        return {name: round(share, 4) for name, share in found.items()}
