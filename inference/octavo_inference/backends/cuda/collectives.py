"""The collectives of a step: NCCL between GPUs, gloo between processes that interpret kernels on the CPU.

A group of one rank does nothing. Larger groups allocate nothing and never synchronize with the host, so that CUDA
graphs can capture them: they work in the decoder's buffers.
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

# All ranks are processes of one machine, so their rendezvous stays on the loopback interface.
_INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
# Torch's own watchdogs abort a process without a message. `ranks` watches the processes, and the server its engine.
_UNWATCHED = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
# How long a rank waits for the others to join.
_PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The rank of this process among `size` ranks. With more than one, `join` has been called."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: Torch) -> None:
        """Replace contiguous x by the sum of all ranks' x."""
        if self.size > 1:
            dist.all_reduce(x)

    def share(self, logits: Torch, gathered: Torch) -> Torch:
        """The columns of `logits` [R, vocab] that this rank writes. `gathered` has `gathered_size` elements."""
        return logits if self.size == 1 else self._shares(logits, gathered)[self.rank]

    def gather(self, logits: Torch, gathered: Torch) -> None:
        """Gather `logits` from the shards of all ranks: the same bits on every rank."""
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
        """View of `gathered` as [size, R, columns of a rank]."""
        rows, vocab = logits.shape
        width = vocab_share(vocab, self.size)
        return gathered[: self.size * rows * width].view(self.size, rows, width)


ALONE = RankGroup()


def gathered_size(vocab: int, rows: int, size: int) -> int:
    """Elements of the buffer that gathering this many rows of logits needs in addition to the logits."""
    return 0 if size == 1 else size * rows * vocab_share(vocab, size)


def join(folder: Path, *, rank: int, size: int, device: torch.device) -> RankGroup:
    """Join the group as a rank; returns once all ranks joined. The group must own `folder` for as long as it exists."""
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
        # NCCL connects, and allocates its buffers, at first use. Short and long messages use separate connections.
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
    """Set variables that are not set yet while libraries read them: the process may belong to a user's program."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
