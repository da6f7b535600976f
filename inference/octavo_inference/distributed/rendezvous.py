"""Rendezvous of the ranks: each finds its GPU, all join, and rank 0 learns the smallest free memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from octavo_inference.backends.cuda.collectives import RankGroup, join
from octavo_inference.backends.cuda.device import Device, find_device
from octavo_inference.common.errors import DeviceError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.distributed.executor import RankExecutor
from octavo_inference.distributed.messages import RankDevice


def enter(rank: int, size: int, folder: Path) -> tuple[RankGroup, Device]:
    """Join as a rank on its GPU. The returned free memory excludes the memory that the group itself takes."""
    device = find_device(rank, count=size)
    group = join(folder, rank=rank, size=size, device=device.torch)
    return group, find_device(rank, count=size)


def meet(settings: EngineSettings, digest: str, ranks: RankExecutor) -> tuple[RankGroup, Device]:
    """Join as rank 0. The returned device has the smallest memory of all ranks, since sizes must be equal on all.

    Raises `DeviceError` if the GPUs are not of one kind.
    """
    ranks.begin(settings, digest)
    group, device = enter(0, ranks.size, ranks.folder)
    return group, least(device, ranks.found())


def least(own: Device, others: list[RankDevice]) -> Device:
    """`own` with the smallest memory of all ranks. Raises `DeviceError` if another rank has a GPU of another kind."""
    for rank, other in enumerate(others, 1):
        if other.name != own.name:
            raise DeviceError(
                f"the ranks of a model need GPUs of one kind, or they would choose different tokens: rank 0 has "
                f"{own.name} and rank {rank} has {other.name}; choose one kind with resources.gpu.product, elsewhere "
                "with CUDA_VISIBLE_DEVICES"
            )
    return replace(
        own,
        total=min(own.total, *(other.total for other in others)),
        free=min(own.free, *(other.free for other in others)),
    )
