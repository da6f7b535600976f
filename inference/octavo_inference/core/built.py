"""The result of building a backend."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.common.memory_plan import MemoryPlan
from octavo_inference.config.engine import BackendName, Dtype
from octavo_inference.core.backend import Backend
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.core.speculation.draft_model import DraftModel
from octavo_inference.models.info import ModelInfo


@dataclass(frozen=True, slots=True)
class Built:
    """A backend, the sizes it was built for, and the resolved values of settings left on auto."""

    backend: Backend
    config: ModelInfo
    sizes: CacheSizes
    name: BackendName
    dtype: Dtype
    threads: int
    memory: MemoryPlan | None = None
    rank_pids: tuple[int, ...] = ()
    captured: int = 0
    """Number of captured CUDA graphs of decode steps."""
    capture_seconds: float = 0.0
    max_samples: int = 0
    """Tokens that a step samples at most; 0 for one of each sequence."""
    adapter_memory: int | None = None
    """Bytes of host memory for adapters; None for no limit."""
    draft: DraftModel | None = None
    """The draft model, if the settings name one."""
