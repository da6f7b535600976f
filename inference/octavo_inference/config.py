"""Settings of an engine, as a person gives them; None leaves the choice to `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["auto", "cpu", "reference"]
Dtype = Literal["auto", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One field per engine knob. Lengths in tokens, `kv_memory` in bytes, counts of sequences."""

    model: str = "smollm2"
    backend: BackendName = "auto"
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    kv_memory: int | None = None
    block_size: int | None = None
    prefix_caching: bool = True
    max_running_requests: int | None = None
    max_batched_tokens: int | None = None
    max_queued_requests: int = 1024
    chunked_prefill: bool = True
    threads: int | None = None
