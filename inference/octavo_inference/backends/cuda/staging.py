"""Staging buffers in host memory for copies to and from the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch


def copied(device: torch.device) -> torch.cuda.Event | None:
    """An event that completes when all work launched so far on the current stream has; None without a GPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


class Staging:
    """Two staging buffers of `size` bytes each, pinned for a GPU: one is filled while the other is copied."""

    def __init__(self, size: int, device: torch.device) -> None:
        gpu = device.type == "cuda"
        self._halves = [torch.empty(size, dtype=torch.uint8, pin_memory=gpu) for _ in range(2)]
        self._copied = [torch.cuda.Event() if gpu else None for _ in range(2)]  # type: ignore[no-untyped-call]
        self._next = 0

    def fill(self) -> NDArray[np.uint8]:
        """Return the buffer to fill next. Waits until its last copy, two copies ago, has reached the device."""
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        half: NDArray[np.uint8] = self._halves[self._next].numpy()
        return half

    def copy(self, target: Torch) -> None:
        """Copy the front of the filled buffer into a contiguous tensor.

        The tensor holds the values when the current stream has completed the copy.
        """
        half, copied = self._halves[self._next], self._copied[self._next]
        self._next = 1 - self._next
        target.copy_(half[: target.nbytes].view(target.dtype).view(target.shape), non_blocking=True)
        if copied is not None:
            copied.record()

    def send(self, array: NDArray[np.generic], target: Torch) -> None:
        """Copy the bytes of an array into a contiguous tensor of the same size.

        `array` may change as soon as this returns. The tensor holds the values when the current stream has
        completed the copy.
        """
        np.copyto(self.fill()[: target.nbytes].view(array.dtype).reshape(array.shape), array)
        self.copy(target)


class Ring:
    """Host memory for results from the device: `count` buffers of `size` bytes in turns, pinned for a GPU."""

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        gpu = device.type == "cuda"
        self._pieces = [torch.empty(size, dtype=torch.uint8, pin_memory=gpu) for _ in range(count)]
        self._next = 0

    def receive(self, values: Torch) -> Torch:
        """Start copying a contiguous tensor to the host; the values are valid when the copy has completed.

        They last until `count` further tensors have been received.
        """
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % len(self._pieces)
        host = piece[: values.nbytes].view(values.dtype).view(values.shape)
        host.copy_(values, non_blocking=True)
        return host
