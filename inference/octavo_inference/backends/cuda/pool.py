"""The KV pool on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor as Torch

KV_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8)
_SCALED = (torch.float8_e4m3fn, torch.int8)
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KvPool:
    """K and V of all blocks. A block holds tokens of as many layers as a group has (`models.layer_groups`).

    `data` [layers of a group, num_blocks, 2 (K, V), kv_heads, block_size, head_dim] in one of `KV_TYPES`; `scales`
    [layers of a group, num_blocks, 2, kv_heads, block_size] in float32 for 8-bit types: the divisor of a token's head
    when it was stored (its largest magnitude over the type's); None for other types.

    A head's tokens of a block are contiguous: a kernel reads one run of memory per block and head. A block of a layer
    is contiguous for copies, swap and KV transfer. Pools of latents have one vector for a token (`allocate_latents`).
    """

    data: Torch
    scales: Torch | None

    @property
    def tensors(self) -> list[Torch]:
        """What blocks consist of, [layers, blocks, ...]: nothing for a model of state layers alone."""
        return [tensor for tensor in (self.data, self.scales) if tensor is not None and len(tensor)]

    def layer(self, number: int) -> tuple[Torch, Torch | None]:
        """Views of a layer by its number in its group: [num_blocks, 2, kv_heads, block_size, head_dim]; scales."""
        return self.data[number], None if self.scales is None else self.scales[number]


def block_bytes(*, layers: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block over its layers, scales included: `allocate_pool` allocates as many per block."""
    scale = _SCALE_BYTES if dtype in _SCALED else 0
    return layers * 2 * kv_heads * block_size * (head_dim * dtype.itemsize + scale)


def latent_block_bytes(*, layers: int, block_size: int, cached_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block of latents over all layers: `allocate_latents` allocates as many per block."""
    return layers * block_size * cached_dim * dtype.itemsize


def allocate_latents(
    *, layers: int, num_blocks: int, block_size: int, cached_dim: int, dtype: torch.dtype, device: torch.device
) -> KvPool:
    """Allocate a pool of zeros for latent attention: `data` [layers, num_blocks, block_size, cached_dim], no scales."""
    return KvPool(torch.zeros((layers, num_blocks, block_size, cached_dim), dtype=dtype, device=device), None)


def allocate_pool(
    *,
    layers: int,
    num_blocks: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KvPool:
    """Allocate a pool of zeros. Raises ValueError for a type that is not in `KV_TYPES`."""
    if dtype not in KV_TYPES:
        raise ValueError(f"dtype of the KV pool is {dtype}; expected one of {', '.join(map(str, KV_TYPES))}")
    shape = (layers, num_blocks, 2, kv_heads, block_size)
    data = torch.zeros((*shape, head_dim), dtype=dtype, device=device)
    return KvPool(data, torch.zeros(shape, device=device) if dtype in _SCALED else None)
