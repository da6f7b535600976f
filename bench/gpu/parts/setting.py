"""What every part is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from journal import Keep
from roofline import Rates
from timing import Timer

Size = TypeVar("Size")


@dataclass(frozen=True, slots=True)
class Setting:
    """A machine and what to measure on it. `peaks` is what the card reached, `sheet` its data sheet where it is known.

    `interpret`: tiny sizes on the CPU, whose figures mean nothing. `folder` is for large files.
    """

    models: tuple[str, ...]
    interpret: bool
    timer: Timer
    device: torch.device
    peaks: Rates
    sheet: Rates | None
    folder: Path
    ranks: int = 1
    keep: Keep = field(default_factory=Keep)

    def pick(self, real: Size, tiny: Size) -> Size:
        """A size, or the one that an interpreter can take."""
        return tiny if self.interpret else real

    def shares(self, moved: float, operations: float, seconds: float) -> dict[str, float]:
        """Share of the measured and of the data sheet's bandwidth and bf16 arithmetic."""
        found = {
            "of_bandwidth": moved / seconds / self.peaks.bandwidth,
            "of_flops": operations / seconds / self.peaks.bf16,
        }
        if self.sheet is not None:
            found["of_sheet_bandwidth"] = moved / seconds / self.sheet.bandwidth
            found["of_sheet_flops"] = operations / seconds / self.sheet.bf16
        return {name: round(share, 4) for name, share in found.items()}
