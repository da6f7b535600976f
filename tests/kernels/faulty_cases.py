"""Cases with a fault each, for `test_check.py`: run with TRITON_INTERPRET=1."""

from pathlib import Path

import torch

from bench.gpu.cases.case import Case, Place, Trial
from bench.gpu.experiments.check import check_kernel
from bench.gpu.experiments.setting import Setting
from bench.gpu.roofline import PUBLISHED
from bench.gpu.timing import Flush, Wall
from bench.lib.results import attempt

SETTING = Setting((), True, Wall(), torch.device("cpu"), PUBLISHED, None, Path())
FLUSH = Flush(SETTING.device)
RIGHT = torch.tensor([1.0, -4.0, float("-inf"), float("nan")])


def trial(found: torch.Tensor, expected: torch.Tensor, bound: float = 1e-3) -> Trial:
    return Trial(lambda: None, lambda: [(found, expected)], bound, 0)


def changed(index: int, value: float) -> torch.Tensor:
    found = RIGHT.clone()
    found[index] = value
    return found


def broken(place: Place) -> Trial:
    raise RuntimeError("an illegal memory access was encountered")


cases = [
    Case("same", "", lambda _: trial(RIGHT, RIGHT)),
    Case("near", "", lambda _: trial(changed(0, 1.002), RIGHT)),
    Case("far", "", lambda _: trial(changed(0, 1.1), RIGHT)),
    Case("nan", "", lambda _: trial(changed(0, float("nan")), RIGHT)),
    Case("number for nan", "", lambda _: trial(changed(3, 0.0), RIGHT)),
    Case("number for -inf", "", lambda _: trial(changed(2, -3e38), RIGHT)),
    Case("one of four tokens", "", lambda _: trial(torch.tensor([1, 2, 3, 5]), torch.tensor([1, 2, 3, 4]), 0.2)),
    Case("shape", "", lambda _: trial(RIGHT[:3], RIGHT)),
    Case("broken", "", broken),
    Case("after it", "", lambda _: trial(RIGHT, RIGHT)),
]
for case in cases:
    row = attempt(lambda case=case: check_kernel(SETTING, FLUSH, case))
    print(f"{case.kernel}: {row['verdict']} {row.get('why', '')}".strip())
