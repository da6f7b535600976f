"""What building a backend settles."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.common.memory_plan import MemoryPlan
from octavo_inference.config.engine import BackendName, Dtype
from octavo_inference.core.backend import Backend
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.models.info import ModelInfo


@dataclass(frozen=True, slots=True)
class Built:
    """A backend, the sizes it was made for, and what became of settings that left the choice."""

    backend: Backend
    config: ModelInfo
    sizes: CacheSizes
    name: BackendName
    dtype: Dtype
    threads: int
    memory: MemoryPlan | None = None
    rank_pids: tuple[int, ...] = ()
    captured: int = 0
    """CUDA graphs of decoding steps."""
    capture_seconds: float = 0.0
