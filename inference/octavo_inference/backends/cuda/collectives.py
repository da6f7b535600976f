"""The collectives of a step: NCCL between GPUs, gloo between processes that interpret kernels on the CPU.

A group of one does nothing. Larger ones take no memory and wait for nothing, so that a step with them can be recorded
as a CUDA graph: their buffers are the decoder's.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor as Torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from octavo_inference.models.shard import vocab_share

# Ranks of a group are processes of one machine: what they say to find each other need not leave it.
_INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
# Torch's own watchdogs abort a process without a word. `ranks` watches the processes, and the server its engine.
_UNWATCHED = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
# How long a rank waits for the others to come.
_PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Which of `size` ranks this process is. Of more than one, `join` has been called."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Torch) -> None:
        """Make x, contiguous, the sum of all ranks' x."""
        if self.size > 1:
            dist.all_reduce(x)

    def share(self, logits: Torch, gathered: Torch) -> Torch:
        """Where this rank writes its columns of `logits` [R, vocab]. `gathered` has `gathered_size` elements."""
        return logits if self.size == 1 else self._shares(logits, gathered)[self.rank]

    def gather(self, logits: Torch, gathered: Torch) -> None:
        """Fill `logits` from the shares of all ranks: the same bits everywhere."""
        if self.size == 1:
            return
        shares = self._shares(logits, gathered)
        dist.all_gather_into_tensor(shares.flatten(), shares[self.rank].flatten())
        _, rows, width = shares.shape
        whole, rest = divmod(logits.shape[1], width)
        logits[:, : whole * width].view(rows, whole, width).copy_(shares[:whole].transpose(0, 1))
        if rest:
            logits[:, whole * width :].copy_(shares[whole, :, :rest])

    def _shares(self, logits: Torch, gathered: Torch) -> Torch:
        """Views [size, R, columns of a rank]."""
        rows, vocab = logits.shape
        width = vocab_share(vocab, self.size)
        return gathered[: self.size * rows * width].view(self.size, rows, width)


ALONE = RankGroup()


def gathered_size(vocab: int, rows: int, size: int) -> int:
    """Elements that gathering so many rows of logits takes beside them."""
    return 0 if size == 1 else size * rows * vocab_share(vocab, size)


def join(folder: Path, *, rank: int, size: int, device: torch.device) -> RankGroup:
    """Become a rank: returns once all are there. `folder` is theirs alone and stays as long as they do."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    with _environment({_INTERFACES[backend]: "lo"} | _UNWATCHED):
        dist.init_process_group(
            backend,
            store=FileStore(str(folder / "ranks"), size),
            rank=rank,
            world_size=size,
            timeout=_PATIENCE,
            device_id=device if backend == "nccl" else None,
        )
        # Connections are made, and take their memory, when they are first used: short and long messages have their own.
        for elements in (1, 1 << 20):
            x = torch.ones(elements, device=device)
            dist.all_reduce(x)
            dist.all_gather_into_tensor(torch.empty(size * elements, device=device), x)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
    return RankGroup(rank, size)


@contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Variables that nobody set, for as long as libraries read them: the process may be a user's own."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
