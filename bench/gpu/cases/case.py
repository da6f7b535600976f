"""A case: one kernel at one shape. `compile` compiles it and `check` runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """The device of a case: a GPU, the CPU under Triton's interpreter, or `meta`, which has sizes and no memory.

    `dtype` is that of activations and dense weights: float32 in the interpreter, which has little bfloat16.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool

    @property
    def processors(self) -> int:
        """Number of multiprocessors, for launches that split their work by it."""
        if self.device.type != "cuda":
            return 4 if self.tiny else 132
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def pick(self, real: int, tiny: int) -> int:
        """Return `real`, or `tiny` for the interpreter."""
        return tiny if self.tiny else real

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal values."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An output tensor, filled with NaN where the type has it, so that unwritten elements are detected."""
        kind = dtype or self.dtype
        if not kind.is_floating_point or kind.itemsize == 1:
            return torch.zeros(shape, device=self.device, dtype=kind)
        return torch.full(shape, float("nan"), device=self.device, dtype=kind)

    def weight(self, size: int) -> Tensor:
        """Norm weights from 0.5 to 1.5."""
        return torch.rand(size, device=self.device) + 0.5

    def numbers(self, values: NDArray[np.float32]) -> Tensor:
        """Given values, rounded to the type of activations, in float32."""
        return torch.from_numpy(values).to(self.device, self.dtype).float()

    def ints(self, values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
        """A vector of given values."""
        return torch.tensor(values, device=self.device, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Trial:
    """A prepared case. `launch` is repeatable; `pairs` (found, expected) is valid after the first call.

    `bound` is on the largest error, relative to the largest expected value (see `experiments.check.error`). `moved` is
    the minimum memory traffic in bytes.
    """

    launch: Callable[[], object]
    pairs: Callable[[], list[Pair]]
    bound: float
    moved: int


@dataclass(frozen=True, slots=True)
class Case:
    """`prepare` creates the inputs at a place. `float8`: needs compute capability 8.9, and is refused below.

    `groups8`: needs a library that multiplies float8 in groups of columns, and is refused without. `library`: a product
    of torch's library, so there is nothing to compile. `quick`: part of the small set that is compiled by default.
    """

    kernel: str
    variant: str
    prepare: Callable[[Place], Trial]
    float8: bool = False
    groups8: bool = False
    library: bool = False
    quick: bool = False


def rounding(dtype: torch.dtype, roundings: float = 1.0) -> float:
    """Error bound for a result in `dtype` after this many roundings: one ulp of the largest value each.

    In float32 the order of summation matters more than the last rounding: 2e-5.
    """
    return 2e-5 if dtype == torch.float32 else roundings * torch.finfo(dtype).eps


def size_of(*tensors: Tensor) -> int:
    """Total bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors)
