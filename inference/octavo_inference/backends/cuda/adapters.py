"""Adapters on the device: their slots, the blocks of a step's rows, and the changes of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.adapter_layout import (
    FIELDS,
    AdaptedMatrix,
    padded,
    rank_for,
    row_width,
    slot_elements,
)
from octavo_inference.backends.cuda.buffers import StepBuffers
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.adapter_choices import changed_choices
from octavo_inference.backends.cuda.kernels.adapter_configs import block_rows, choice_rows, choice_splits, splits_of
from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, HEAD, PART, UNIT
from octavo_inference.backends.cuda.kernels.adapter_expand import expand, output_tiles
from octavo_inference.backends.cuda.kernels.adapter_rows import spread_slots
from octavo_inference.backends.cuda.kernels.adapter_shrink import shrink, shrink_ids
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks, sort_by_expert
from octavo_inference.backends.cuda.kernels.token_rows import SlotRows, own_embeddings, own_logits
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import MOST_TOKEN_ROWS, Adapter, LowRank, TokenRows, require_supported
from octavo_protocol.adapters import MAX_ADAPTER_RANK


@dataclass(frozen=True, slots=True)
class PinnedAdapter:
    """An adapter in host memory, as a slot holds it: `numbers` and `entries` of `adapter_entries`.

    `rows` are those of embedding and head: ids, rows, biases.
    """

    numbers: Torch
    entries: Torch
    rows: tuple[tuple[Torch, Torch, Torch], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        rows = sum(tensor.nbytes for own in self.rows for tensor in own)
        return self.numbers.nbytes + self.entries.nbytes + rows


class DeviceAdapters:
    """The slots of adapters of up to `max_rank`, and the products with those of a step's rows.

    Rows are first sorted by slot: those of all query tokens by `begin`, those of sample rows by `begin_samples`. Both
    use the same buffers, since the head follows the layers. Choices of experts are sorted in each layer, by
    `begin_choices`. Creation allocates `adapter_layout.slots_bytes`.
    """

    def __init__(
        self,
        matrices: Sequence[AdaptedMatrix],
        buffers: StepBuffers[Torch],
        *,
        slots: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots, self._max_rank = slots, max_rank
        self._matrices = tuple(matrices)
        self._places: dict[tuple[int | None, str], int] = {}
        for place, matrix in enumerate(matrices):
            self._places.setdefault((matrix.layer, matrix.name), place)
        self._firsts = np.cumsum([0, *(matrix.entries for matrix in matrices)]).tolist()
        self._numbers = torch.zeros((slots, slot_elements(matrices, max_rank)), dtype=dtype, device=device)
        self._entries = torch.zeros((slots, self._firsts[-1], ENTRY), dtype=torch.int32, device=device)
        self._rows = tuple(_slot_rows(slots, row_width(matrices), dtype, device) for _ in range(2))
        tiles = {outputs: output_tiles(outputs, device) for outputs in {matrix.outputs for matrix in matrices}}
        self._tiles = [tiles[matrix.outputs] for matrix in matrices]
        self._buffers = buffers
        self._pinned = device.type == "cuda"

    def prepare(self, adapter: Adapter) -> PinnedAdapter:
        """Bring an adapter into the form of a slot, in any thread. Raises `ModelError` for one that does not fit."""
        require_supported(adapter, FIELDS)
        if adapter.rank > self._max_rank:
            raise ModelError(f"a rank of {adapter.rank}; the server takes up to {self._max_rank} (max_adapter_rank)")
        changes = [self._changes(adapter, matrix) for matrix in self._matrices]
        placed = sum(change is not None for parts in changes for change in parts)
        if placed < sum(1 for _ in adapter.parts()):
            raise ModelError("it changes matrices that the model does not have")
        if any(matrix.heads and _biased(change) for matrix, change in zip(self._matrices, changes, strict=True)):
            raise ModelError("it has biases of kv_b_proj, which latent attention has no place for")
        size = sum(_elements(matrix, change) for matrix, change in zip(self._matrices, changes, strict=True))
        if size > self._numbers.shape[1]:
            raise ModelError(self._too_large(size))
        numbers = torch.zeros(size, dtype=self._numbers.dtype, pin_memory=self._pinned)
        entries = torch.zeros(self._entries.shape[1:], dtype=torch.int32, pin_memory=self._pinned)
        at = 0
        for matrix, change, first in zip(self._matrices, changes, self._firsts[:-1], strict=True):
            end = at + _elements(matrix, change)
            own = entries.numpy()[first : first + matrix.entries]
            if matrix.heads:
                _fill_heads(matrix, change[0], numbers[at:end], at, own)
            else:
                _fill(matrix, change, numbers[at:end], at, own[0])
            at = end
        rows = tuple(self._token_rows(own) for own in (adapter.embedding_rows, adapter.lm_head_rows))
        return PinnedAdapter(numbers, entries, rows)

    def _token_rows(self, own: TokenRows | None) -> tuple[Torch, Torch, Torch]:
        if own is None:
            own = TokenRows(np.empty(0, np.int32), np.empty((0, self._rows[0].rows.shape[2]), np.float32))
        bias = np.zeros(len(own.ids), np.float32) if own.bias is None else own.bias
        found = torch.from_numpy(own.ids), torch.from_numpy(own.rows).to(self._numbers.dtype), torch.from_numpy(bias)
        if not self._pinned:
            return found
        ids, rows, biases = (each.contiguous().pin_memory() for each in found)
        return ids, rows, biases

    def load(self, slot: int, adapter: PinnedAdapter | None) -> None:
        """Put an adapter into a slot, or empty it, before later launches on the current stream."""
        for number, own in enumerate(self._rows):
            if adapter is None:
                own.counts[slot].zero_()
                continue
            ids, rows, biases = adapter.rows[number]
            own.counts[slot].fill_(len(ids))
            for held, given in ((own.ids, ids), (own.rows, rows), (own.biases, biases)):
                held[slot, : len(given)].copy_(given, non_blocking=True)
        if adapter is None:
            self._entries[slot].zero_()
            return
        self._numbers[slot, : len(adapter.numbers)].copy_(adapter.numbers, non_blocking=True)
        self._entries[slot].copy_(adapter.entries, non_blocking=True)

    def begin(self, inputs: Inputs, adapter: Torch) -> None:
        """Sort the query tokens of a step by the slots of their sequences' adapters [B]."""
        slots = self._buffers.adapter_slots[: inputs.tokens]
        spread_slots(adapter, inputs.query_start, slots)
        self._sort(slots)

    def begin_samples(self, query: Torch) -> None:
        """Sort sample rows, those of query tokens [R]: for the head."""
        slots = self._buffers.adapter_samples[: len(query)]
        torch.index_select(self._buffers.adapter_slots, 0, query, out=slots)
        self._sort(slots)

    def begin_range(self, first: int, count: int) -> None:
        """Sort `count` query tokens, from `first` on: for the head."""
        # A copy begins at an aligned address: for others Triton compiles another variant.
        slots = self._buffers.adapter_samples[:count]
        slots.copy_(self._buffers.adapter_slots[first : first + count])
        self._sort(slots)

    def add(self, layer: int | None, name: str, x: Torch, out: Torch) -> None:
        """Add the changes of x [M, columns] to its products with a matrix, out [M, rows]. M rows were sorted last."""
        place = self._places[layer, name]
        matrix = self._matrices[place]
        products = self._products(matrix, len(x), splits_of(len(x), matrix.columns, x.dtype))
        places, blocks = self._blocks(len(x))
        entries = self._of(place)
        block = block_rows(len(x), x.dtype)
        shrink(x, places, blocks, entries, self._numbers, products, most_ranks=products.shape[2], block=block)
        expand(
            products, places, blocks, entries, self._numbers, self._tiles[place], out, max_rank=self._max_rank,
            block=block,
        )  # fmt: skip

    def add_heads(self, layer: int, name: str, x: Torch, out: Torch) -> None:
        """Add the changes of each head to its products, x [M, heads, K] and out [M, heads, N] at any stride.

        M rows were sorted last.
        """
        place, (rows, heads, _) = self._places[layer, name], out.shape
        ranks = padded(self._max_rank)
        products = self._buffers.adapter_products[: heads * rows * ranks].view(heads, rows, ranks)
        places, blocks = self._blocks(rows)
        given, block = self._of(place), block_rows(rows, x.dtype)
        shrink(x, places, blocks, given, self._numbers, products, most_ranks=ranks, block=block, heads=True)
        expand(
            products, places, blocks, given, self._numbers, self._tiles[place], out, max_rank=self._max_rank,
            block=block, heads=True,
        )  # fmt: skip

    def begin_choices(self, layer: int, ids: Torch, experts: int) -> Torch:
        """Sort the choices ids [T, chosen] of a layer's `experts` by slot and expert.

        Returns their keys [T * chosen], below 0 for those that no adapter changes. Valid until the next layer.
        """
        keys = self._buffers.adapter_choices[: ids.numel()]
        entries = self._of(self._places[layer, "experts"])
        changed_choices(ids, self._buffers.adapter_slots[: len(ids)], entries, keys, experts=experts)
        buffers = self._buffers
        sort_by_expert(
            keys, buffers.adapter_choice_totals, buffers.adapter_choice_places, buffers.adapter_choice_blocks,
            rows=choice_rows(len(keys), experts, self._numbers.dtype),
        )  # fmt: skip
        return keys

    def add_choices(
        self,
        layer: int,
        name: str,
        x: Torch,
        out: Torch,
        *,
        experts: int,
        x_weights: Torch | None = None,
        new: bool = False,
    ) -> None:
        """Add the changes of choices to their products with the matrices of `experts`, out [T * chosen, rows].

        x [T * chosen, columns], or [T, columns] with the row of a token for all of its choices. x_weights [T * chosen]
        float32 are factors of rows of x. `new`: `out` has no products yet.
        """
        place, choices = self._places[layer, name], len(out)
        matrix, buffers = self._matrices[place], self._buffers
        products = self._products(matrix, choices, choice_splits(choices, matrix.columns))
        block = choice_rows(choices, experts, x.dtype)
        blocks = buffers.adapter_choice_blocks[: most_blocks(choices, self.slots * experts, block)]
        places, entries = buffers.adapter_choice_places, self._of(place)
        shrink(
            x, places, blocks, entries, self._numbers, products, most_ranks=products.shape[2], block=block,
            experts=experts, x_weights=x_weights,
        )  # fmt: skip
        expand(
            products, places, blocks, entries, self._numbers, self._tiles[place], out, max_rank=self._max_rank,
            block=block, experts=experts, new=new,
        )  # fmt: skip

    def add_embedding(self, tokens: Torch, out: Torch, scale: float) -> None:
        """Add the changes of tokens' embeddings [T], times `scale`, to out [T, hidden]."""
        place = self._places[None, "embedding"]
        products = self._products(self._matrices[place], len(tokens), 1)
        places, blocks = self._blocks(len(tokens))
        entries, slots = self._of(place), self._buffers.adapter_slots[: len(tokens)]
        shrink_ids(tokens, slots, entries, self._numbers, products, factor=scale, most_ranks=products.shape[2])
        expand(
            products, places, blocks, entries, self._numbers, self._tiles[place], out, max_rank=self._max_rank,
            block=block_rows(len(tokens), self._numbers.dtype),
        )  # fmt: skip

    def replace_embedding(
        self, tokens: Torch, out: Torch, scale: float, positions: Torch, learned: Torch | None
    ) -> None:
        """Write the embeddings of tokens [T] whose rows their adapters bring, times `scale`, to out [T, hidden].

        `learned` embeddings of `positions` are added where the model has them.
        """
        slots, at = self._buffers.adapter_slots[: len(tokens)], None if learned is None else positions
        own_embeddings(tokens, slots, self._rows[0], out, factor=scale, positions=at, learned=learned)

    def replace_logits(self, x: Torch, logits: Torch) -> None:
        """Write the logits of ids whose rows of lm_head the adapters of x [M, hidden] bring.

        M rows were sorted last.
        """
        places, blocks = self._blocks(len(x))
        own_logits(x, places, blocks, self._rows[1], logits)

    def _of(self, place: int) -> Torch:
        """The entries of a matrix in all slots, and of those behind it."""
        return self._entries[:, self._firsts[place]]

    def _too_large(self, size: int) -> str:
        """Why an adapter of so many numbers has no room."""
        own, most = (n * self._numbers.element_size() / 2**20 for n in (size, self._numbers.shape[1]))
        needed = rank_for(self._matrices, size)
        fix = f"set that to {needed}" if needed <= MAX_ADAPTER_RANK else "train it with a lower rank, or fewer experts"
        return (
            f"it takes {own:.1f} MiB and a slot has {most:.1f} MiB: it changes more experts than have room with "
            f"max_adapter_rank {self._max_rank}; {fix}"
        )

    def _changes(self, adapter: Adapter, matrix: AdaptedMatrix) -> list[LowRank | None]:
        """The changes of a matrix's parts."""
        outer = {"embedding": adapter.embedding, "lm_head": adapter.lm_head}
        given: Mapping[str, LowRank | None] = outer if matrix.layer is None else adapter.layers[matrix.layer]
        return [given.get(field) for field in matrix.fields]

    def _products(self, matrix: AdaptedMatrix, rows: int, splits: int) -> Torch:
        width = len(matrix.rows) * padded(self._max_rank)
        return self._buffers.adapter_products[: splits * rows * width].view(splits, rows, width)

    def _sort(self, slots: Torch) -> None:
        block = block_rows(len(slots), self._numbers.dtype)
        totals, places, blocks = (
            self._buffers.adapter_totals,
            self._buffers.adapter_places,
            self._buffers.adapter_blocks,
        )
        sort_by_expert(slots, totals, places, blocks, rows=block)

    def _blocks(self, rows: int) -> tuple[Torch, Torch]:
        """Places and blocks of so many rows, sorted before."""
        most = most_blocks(rows, self.slots, block_rows(rows, self._numbers.dtype))
        return self._buffers.adapter_places, self._buffers.adapter_blocks[:most]


def _slot_rows(slots: int, width: int, dtype: torch.dtype, device: torch.device) -> SlotRows:
    """The rows of tokens of all slots for one matrix, none yet."""
    places = (slots, MOST_TOKEN_ROWS)
    return SlotRows(
        torch.zeros(places, dtype=torch.int32, device=device),
        torch.zeros(slots, dtype=torch.int32, device=device),
        torch.zeros((*places, width), dtype=dtype, device=device),
        torch.zeros(places, device=device),
    )


def _elements(matrix: AdaptedMatrix, changes: Sequence[LowRank | None]) -> int:
    """Numbers of a matrix's changes."""
    found = [change for change in changes if change is not None]
    ranks = [padded(change.rank) for change in found]
    up = sum(len(change.up) * rank for change, rank in zip(found, ranks, strict=True))
    return sum(ranks) * matrix.columns + up + (padded(sum(matrix.rows)) if _biased(changes) else 0)


def _biased(changes: Sequence[LowRank | None]) -> bool:
    return any(change is not None and change.bias is not None for change in changes)


def _fill_heads(
    matrix: AdaptedMatrix, change: LowRank | None, numbers: Torch, start: int, entries: NDArray[np.int32]
) -> None:
    """Write the change of a matrix by heads to `numbers`, zeros that begin at `start` of the run, and its entries."""
    if change is None or change.rank == 0:
        return
    rank, heads = padded(change.rank), matrix.heads
    each = matrix.rows[0] // heads * rank  # numbers of a head
    shared, own = numbers[: rank * matrix.columns], numbers[rank * matrix.columns :]
    down, up = torch.from_numpy(change.down), torch.from_numpy(change.up).view(heads, -1, change.rank)
    if matrix.transposed:
        shared.view(matrix.columns, rank)[:, : change.rank].copy_(down.T)
        own.view(heads, rank, -1)[:, : change.rank].copy_(up.transpose(1, 2))
    else:
        shared.view(rank, matrix.columns)[: change.rank].copy_(down)
        own.view(heads, -1, rank)[..., : change.rank].copy_(up)
    places = (start + len(shared) + each * np.arange(heads)) // UNIT
    entries[:, 0], entries[:, HEAD + 2] = (places, start // UNIT) if matrix.transposed else (start // UNIT, places)
    entries[:, 1] = entries[:, HEAD + 1] = rank // UNIT


def _fill(
    matrix: AdaptedMatrix,
    changes: Sequence[LowRank | None],
    numbers: Torch,
    start: int,
    entry: NDArray[np.int32],
) -> None:
    """Write the changes of a matrix to `numbers`, zeros that begin at `start` of the run, and to its entry."""
    ranks = [0 if change is None else padded(change.rank) for change in changes]
    total = sum(ranks)
    down = numbers[: total * matrix.columns]
    # Seen as [ranks, columns] in both orders of memory.
    rows = down.view(matrix.columns, total).t() if matrix.by_column else down.view(total, matrix.columns)
    first, at = 0, len(down)
    for part, (change, rank) in enumerate(zip(changes, ranks, strict=True)):
        if change is None or rank == 0:
            continue
        rows[first : first + change.rank].copy_(torch.from_numpy(change.down))
        up = numbers[at : at + len(change.up) * rank].view(-1, rank)
        up[:, : change.rank].copy_(torch.from_numpy(change.up))
        entry[HEAD + part * PART :][:3] = first // UNIT, rank // UNIT, (start + at) // UNIT
        first, at = first + rank, at + up.numel()
    entry[:2] = start // UNIT, total // UNIT
    if _biased(changes):
        entry[2:4] = (start + at) // UNIT, 1
        for change, place, count in zip(changes, np.cumsum([0, *matrix.rows]), matrix.rows, strict=False):
            if change is not None and change.bias is not None:
                numbers[at + place : at + place + count].copy_(torch.from_numpy(change.bias))
