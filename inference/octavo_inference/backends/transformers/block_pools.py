"""KV pools on a GPU, in the layout of the CUDA backend, so that its kernels store K and V, attend and copy blocks.

Attention calls with the same sizes share a pool. K and V of a pool are equally wide: the narrower is padded with zeros,
which change no score and no sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from octavo_inference.backends.cuda.backend import LARGEST_HEAD, independent
from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.block_copy import copy_blocks
from octavo_inference.backends.cuda.kernels.decode_parts import decode_parts, shares_for
from octavo_inference.backends.cuda.kernels.rope_and_cache import rope_store
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, partial_size, partial_views
from octavo_inference.backends.cuda.pool import allocate_pool
from octavo_inference.backends.cuda.transfer import Transfer
from octavo_inference.backends.transformers.attention import KvShape, Mask, Scores
from octavo_inference.backends.transformers.gathered_attention import GatheredAttention, gathered
from octavo_inference.core.gather import Batch

_Sizes = tuple[int, int]
"""Heads of K and V, and elements of a head."""
_OTHER = -1
"""In place of a window: a mask that kernels do not compute."""


class BlockPools:
    """Pools [layers, blocks, 2, heads, block_size, dim] of the attention calls, one pool for each of their sizes."""

    def __init__(
        self,
        shapes: Sequence[KvShape],
        dtype: torch.dtype,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        multiprocessors: int,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        sizes = [_sizes(shape) for shape in shapes]
        pools = {
            one: allocate_pool(
                layers=sizes.count(one),
                num_blocks=num_blocks,
                kv_heads=one[0],
                block_size=block_size,
                head_dim=one[1],
                dtype=dtype,
                device=device,
            )
            for one in dict.fromkeys(sizes)
        }
        self._device = device
        self._multiprocessors = multiprocessors
        self._layers = [pools[one].data[sizes[:number].count(one)] for number, one in enumerate(sizes)]
        self._pools = list(pools.values())
        self._transfers = [Transfer(pool) for pool in self._pools]

    def __len__(self) -> int:
        """Number of attention calls of a forward pass."""
        return len(self._layers)

    def begin(self, batch: Batch) -> BlockPass:
        """The forward pass of a batch."""
        return BlockPass(self._layers, batch, self._multiprocessors)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers."""
        for together in independent(pairs):
            on_device = torch.tensor(together, dtype=torch.int32).to(self._device)
            for pool in self._pools:
                copy_blocks(pool.data, on_device)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        for pool in self._pools:
            pool.data[:, list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Copy whole blocks of all layers: [block, bytes]."""
        return np.concatenate([transfer.to_host(blocks) for transfer in self._transfers], axis=1)

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        start = 0
        for pool, transfer in zip(self._pools, self._transfers, strict=True):
            end = start + pool.data[:, 0].nbytes
            transfer.from_host(saved[:, start:end], blocks)
            start = end


def block_elements(shapes: Sequence[KvShape]) -> int:
    """Elements of a token in `BlockPools`, all layers."""
    return sum(2 * heads * dim for heads, dim in map(_sizes, shapes))


def _sizes(shape: KvShape) -> _Sizes:
    return shape.heads, max(shape.key_dim, shape.value_dim)


@dataclass(slots=True)
class BlockPass:
    """A forward pass over the `layers` of `BlockPools`.

    Kernels attend to all earlier tokens or to a window of them. Every other mask, and heads wider than the kernels
    compute, are left to torch, which gathers the keys.
    """

    layers: list[Tensor]
    batch: Batch
    multiprocessors: int
    calls: int = 0
    _inputs: _Inputs = field(init=False)
    _parts: dict[int, Tensor] = field(default_factory=dict)
    _windows: dict[Mask, int | None] = field(default_factory=dict)
    _gathered: GatheredAttention | None = None

    def __post_init__(self) -> None:
        """Send the batch to the device."""
        self._inputs = _inputs(self.batch, self.layers[0].device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Store K and V, and attend."""
        kv = self.layers[self.calls]
        self.calls += 1
        dim = kv.shape[4]
        wide = [pad(tensor.to(kv.dtype), (0, dim - tensor.shape[2])) for tensor in (query, key, value)]
        q = torch.empty(wide[0].shape, dtype=kv.dtype, device=kv.device)
        inputs = self._inputs
        rope_store(torch.cat(wide, dim=1).flatten(1), inputs.slots, inputs.slots, None, None, None, 0.0, q, kv, None)
        window = self._window(scores.rule)
        if window is _OTHER or dim > LARGEST_HEAD:
            mixed = self._in_torch(q, kv, scores)
        else:
            mixed = self._in_kernels(q, kv, scores, window)
        return mixed[..., : value.shape[2]].to(query.dtype)

    def _window(self, rule: Mask | int | None) -> int | None:
        """The window of a rule: None without one, `_OTHER` for a rule of another kind."""
        if not isinstance(rule, Mask):
            return rule
        if rule not in self._windows:
            self._windows[rule] = window_of(rule)
        return self._windows[rule]

    def _in_kernels(self, q: Tensor, kv: Tensor, scores: Scores, window: int | None) -> Tensor:
        """Decodes and prompts run separately: one query token needs few rows per program, and split keys."""
        inputs, out = self._inputs, torch.empty_like(q)
        sinks = None if scores.sinks is None else scores.sinks.reshape(-1).contiguous()
        parts = self._decode_parts(kv.shape[2])
        for some in (parts, None):
            if (len(parts) if some is not None else inputs.prompts) == 0:
                continue
            attend(
                q,
                kv,
                None,
                inputs.block_table,
                inputs.row,
                inputs.query_start,
                inputs.seq_len,
                out,
                bounds=inputs.bounds if some is None else None,
                parts=some,
                partial=None if some is None else self._partial(some, q),
                scale=scores.scale,
                window=window,
                softcap=scores.softcap,
                sinks=sinks,
            )
        return out

    def _decode_parts(self, kv_heads: int) -> Tensor:
        """How decodes are split along their keys, on the device."""
        if kv_heads not in self._parts:
            shares = shares_for(kv_heads=kv_heads, processors=self.multiprocessors)
            parts = decode_parts(self.batch.seq_len[: self._inputs.decodes], shares=shares)
            self._parts[kv_heads] = torch.from_numpy(parts).to(self._inputs.row.device)
        return self._parts[kv_heads]

    def _partial(self, parts: Tensor, q: Tensor) -> Partial | None:
        """Buffers for the results of parts; None if each decode has one."""
        if len(parts) == self._inputs.decodes:
            return None
        sizes = {"parts": len(parts), "heads": q.shape[1], "head_dim": q.shape[2]}
        return partial_views(torch.empty(partial_size(**sizes), device=q.device), **sizes)

    def _in_torch(self, q: Tensor, kv: Tensor, scores: Scores) -> Tensor:
        if self._gathered is None:
            self._gathered = gathered(self.batch, kv.shape[3], kv.device)

        def read(slots: Tensor) -> tuple[Tensor, Tensor]:
            blocks, offsets = slots // kv.shape[3], slots % kv.shape[3]
            return kv[blocks, 0, :, offsets], kv[blocks, 1, :, offsets]

        return self._gathered.attend(q, read, scores)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A step's integers on the device, int32. The first `decodes` sequences have one query token each.

    slots [T], block_table [B, columns], row [B] of it, query_start [B + 1], seq_len [B]; bounds [2]: the `prompts`.
    """

    slots: Tensor
    block_table: Tensor
    row: Tensor
    query_start: Tensor
    seq_len: Tensor
    bounds: Tensor
    decodes: int
    prompts: int


def _inputs(batch: Batch, device: torch.device) -> _Inputs:
    """Send a batch in one copy."""
    count = len(batch.seq_len)
    longer = np.flatnonzero(np.diff(batch.query_start) != 1)
    decodes = int(longer[0]) if len(longer) else count
    arrays = [
        batch.slots[0],
        batch.block_table[0].reshape(-1),
        np.arange(count),
        batch.query_start,
        batch.seq_len,
        np.array([decodes, count]),
    ]
    together = torch.from_numpy(np.concatenate(arrays).astype(np.int32))
    sent = torch.split(together.to(device), [len(array) for array in arrays])
    slots, table, row, query_start, seq_len, bounds = sent
    return _Inputs(slots, table.view(count, -1), row, query_start, seq_len, bounds, decodes, count - decodes)


def window_of(mask: Mask) -> int | None:
    """The window of a mask: None without one, `_OTHER` for a mask of another kind.

    A mask is known by the code of its functions and the values in them: those of transformers' two causal rules.
    """
    if _same(mask.rule, causal_mask_function):
        return None
    if mask.reach is not None and _same(mask.rule, sliding_window_causal_mask_function(mask.reach)):
        return mask.reach
    return _OTHER


def _same(one: object, other: object) -> bool:
    """True for equal integers, and for functions of the same code over the same values."""
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return one.__code__ is other.__code__ and _same(_values(one), _values(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, int) and isinstance(other, int) and one == other


def _values(function: FunctionType) -> tuple[object, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ())
