"""One kernel at one shape: what `compile` compiles and `check` runs. The same cases serve both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a case runs: a GPU, the CPU under Triton's interpreter, or `meta`, which has sizes and no memory.

    `dtype` is that of activations and dense weights: float32 in the interpreter, which has little bfloat16.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool

    @property
    def processors(self) -> int:
        """Multiprocessors, by which the launches that split their work do so."""
        if self.device.type != "cuda":
            return 4 if self.tiny else 132
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def pick(self, real: int, tiny: int) -> int:
        """A size, or the one that an interpreter can take."""
        return tiny if self.tiny else real

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal values."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """For a kernel to write; NaN where it can be, so that what is left out is seen."""
        kind = dtype or self.dtype
        if not kind.is_floating_point or kind.itemsize == 1:
            return torch.zeros(shape, device=self.device, dtype=kind)
        return torch.full(shape, float("nan"), device=self.device, dtype=kind)

    def weight(self, size: int) -> Tensor:
        """Of a norm: from 0.5 to 1.5."""
        return torch.rand(size, device=self.device) + 0.5

    def ints(self, values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
        """A vector of known values."""
        return torch.tensor(values, device=self.device, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Trial:
    """A case made ready. `launch` can be called again and again; `pairs` (found, expected) holds after the first call.

    `bound` is on the largest error, relative to the largest expected value (see `checking.error`). `moved` is how many
    bytes must come from and go to memory at least.
    """

    launch: Callable[[], object]
    pairs: Callable[[], list[Pair]]
    bound: float
    moved: int


@dataclass(frozen=True, slots=True)
class Case:
    """`prepare` makes the inputs at a place. `float8`: needs compute capability 8.9, and is refused below.

    `quick`: one of the few that the default set compiles.
    """

    kernel: str
    variant: str
    prepare: Callable[[Place], Trial]
    float8: bool = False
    quick: bool = False


def rounding(dtype: torch.dtype, roundings: float = 1.0) -> float:
    """Bound for a result in `dtype` after so many roundings to it: a unit in the last place of the largest value each.

    In float32 the order of sums counts for more than the last rounding: 2e-5.
    """
    return 2e-5 if dtype == torch.float32 else roundings * torch.finfo(dtype).eps


def size_of(*tensors: Tensor) -> int:
    """Bytes."""
    return sum(tensor.nbytes for tensor in tensors)
