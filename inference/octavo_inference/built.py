"""What building a backend settles."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.config import BackendName, Dtype
from octavo_inference.model.description import Description
from octavo_inference.ops.base import Backend
from octavo_inference.run.memory import MemoryPlan
from octavo_inference.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Built:
    """A backend, the sizes it was made for, and what became of settings that left the choice."""

    backend: Backend
    config: Description
    sizes: Sizes
    name: BackendName
    dtype: Dtype
    threads: int
    memory: MemoryPlan | None = None
    rank_pids: tuple[int, ...] = ()
    captured: int = 0
    """CUDA graphs of decoding steps."""
    capture_seconds: float = 0.0
