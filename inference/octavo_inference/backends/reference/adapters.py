"""Low-rank changes of products, row by row: a row's bits do not depend on the other rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor as Torch
from torch.nn.functional import linear

from octavo_inference.core.model_input import Int32
from octavo_inference.models.adapter import Adapter, LowRank, TokenRows

Part = tuple[Torch, Torch, Torch | None]
"""`down`, `up` and bias of a `LowRank`."""


@dataclass(frozen=True, slots=True)
class PreparedAdapter:
    """An adapter in torch: of each layer by field, and of the outer parts under `embedding` and `lm_head`.

    `rows` are those that take the place of the model's, under the same names, by id; with their biases.
    """

    layers: tuple[Mapping[str, Part], ...]
    outer: Mapping[str, Part]
    rows: Mapping[str, Mapping[int, tuple[Torch, float]]]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        parts = (part for changes in (*self.layers, self.outer) for part in changes.values())
        rows = sum(row.nbytes for own in self.rows.values() for row, _ in own.values())
        return rows + sum(tensor.nbytes for part in parts for tensor in part if tensor is not None)


def prepare(adapter: Adapter) -> PreparedAdapter:
    """Bring an adapter into torch's tensors."""
    outer = {"embedding": adapter.embedding, "lm_head": adapter.lm_head}
    return PreparedAdapter(
        tuple({field: _part(change) for field, change in layer.items()} for layer in adapter.layers),
        {name: _part(change) for name, change in outer.items() if change is not None},
        {"embedding": _by_id(adapter.embedding_rows), "lm_head": _by_id(adapter.lm_head_rows)},
    )


def _by_id(found: TokenRows | None) -> dict[int, tuple[Torch, float]]:
    if found is None:
        return {}
    biases = [0.0] * len(found.ids) if found.bias is None else found.bias.tolist()
    rows = zip(torch.from_numpy(found.rows), biases, strict=True)
    return dict(zip(found.ids.tolist(), rows, strict=True))


def _part(change: LowRank) -> Part:
    bias = None if change.bias is None else torch.from_numpy(change.bias)
    return torch.from_numpy(change.down), torch.from_numpy(change.up), bias


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one layer, or of the outer parts, that rows of a step have: those of row r in `rows[r]`."""

    rows: tuple[Mapping[str, Part] | None, ...] = ()

    def add(self, field: str, x: Torch, product: Torch, first: int = 0) -> Torch:
        """The product of rows `x` with a matrix, each row changed by its own adapter. Row 0 is row `first` of all."""
        if not self.rows:
            return product
        changed = [
            row + change(part, inputs) if (part := (parts or {}).get(field)) is not None else row
            for row, inputs, parts in zip(product, x, self.rows[first : first + len(x)], strict=True)
        ]
        return torch.stack(changed)

    def of(self, places: Torch) -> Changes:
        """The changes of some rows, in their order."""
        return Changes(tuple(self.rows[place] for place in places.tolist())) if self.rows else self


NO_CHANGES = Changes()


def change(part: Part, inputs: Torch) -> Torch:
    """What a part adds to the product of one row: [columns] -> [rows]."""
    down, up, bias = part
    return linear(linear(inputs[None].clone(), down), up, bias)[0]


def step_changes(slots: list[PreparedAdapter | None], adapter: Int32, places: Torch, tiles: int) -> StepChanges:
    """The changes of a step's rows in tiles. `adapter[T]`: slot of each token, -1 for none; empty: no token has one."""
    if not len(adapter):
        return StepChanges(())
    rows: list[PreparedAdapter | None] = [None] * tiles
    for place, slot in zip(places.tolist(), adapter.tolist(), strict=True):
        rows[place] = slots[slot] if slot >= 0 else None
    return StepChanges(tuple(rows))


@dataclass(frozen=True, slots=True)
class StepChanges:
    """The adapter of each row of a step; empty if none has one."""

    rows: tuple[PreparedAdapter | None, ...]

    def layer(self, number: int) -> Changes:
        """The changes of a layer."""
        return Changes(tuple(None if each is None else each.layers[number] for each in self.rows))

    @property
    def outer(self) -> Changes:
        """The changes of embedding and head."""
        return Changes(tuple(None if each is None else each.outer for each in self.rows))
