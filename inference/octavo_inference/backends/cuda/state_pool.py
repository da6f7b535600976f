"""The states of sequences on the device, and their way to the host and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.staging import Ring, Staging, copied
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import StateShape


@dataclass(frozen=True, slots=True)
class DeviceStates:
    """States of all slots and state layers: `data` [layers, slots, elements] float32.

    A slot's elements are the inputs of the convolution, then the recurrent state (`shape`): a layer's state of a
    sequence is contiguous for copies.
    """

    data: Torch
    shape: StateShape

    @classmethod
    def allocate(cls, config: ModelConfig, *, slots: int, device: torch.device) -> DeviceStates:
        """The states of a model, of zeros; without slots where it has no state layers."""
        shape = StateShape(0, 0) if config.state is None else config.state.shape
        slots = 0 if config.state is None else slots
        return cls(torch.zeros(config.state_layers, slots, shape.elements, device=device), shape)

    def convolution(self, layer: int) -> Torch:
        """A view of one layer: [slots, conv_tokens, channels]."""
        shape = self.shape
        part = self.data[layer, :, : shape.conv_tokens * shape.channels]
        return part.view(len(part), shape.conv_tokens, shape.channels)

    def recurrent(self, layer: int) -> Torch:
        """A view of one layer: [slots, heads, rows, columns]."""
        shape = self.shape
        part = self.data[layer, :, shape.conv_tokens * shape.channels :]
        return part.view(len(part), shape.heads, shape.rows, shape.columns)


class StateTransfer:
    """Moves the states of whole slots to the host and back, a layer at a time, through pinned memory.

    While one layer's state is on the bus, the host copies another.
    """

    def __init__(self, states: DeviceStates) -> None:
        self._data = states.data
        size = states.shape.elements * states.data.itemsize
        self._arriving = Ring(2, size, states.data.device)
        self._leaving = Staging(size, states.data.device)

    def to_host(self, slots: Sequence[int]) -> NDArray[np.float32]:
        """Copy states to the host: [slot, layers, elements]. Waits for the steps in flight."""
        layers, _, elements = self._data.shape
        saved = np.empty((len(slots), layers, elements), np.float32)
        before: tuple[NDArray[np.float32], Torch, torch.cuda.Event | None] | None = None
        for (place, slot), layer in product(enumerate(slots), range(layers)):
            state = self._arriving.receive(self._data[layer, slot])
            if before is not None:
                _take(*before)
            before = saved[place, layer], state, copied(self._data.device)
        if before is not None:
            _take(*before)
        return saved

    def from_host(self, saved: NDArray[np.generic], slots: Sequence[int]) -> None:
        """Write what `to_host` returned to as many slots, before later launches. `saved` may change afterwards."""
        for (place, slot), layer in product(enumerate(slots), range(len(self._data))):
            self._leaving.send(saved[place, layer], self._data[layer, slot])


def _take(target: NDArray[np.float32], state: Torch, done: torch.cuda.Event | None) -> None:
    """Wait for a copy, and write the state to its place."""
    if done is not None:
        done.synchronize()
    target[:] = state.numpy()
