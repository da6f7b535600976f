"""Settings of an engine, as a person gives them; None leaves the choice to `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_inference.config.cache_policy import PolicyName

BackendName = Literal["auto", "cpu", "cuda", "reference", "transformers"]
Dtype = Literal["auto", "bfloat16", "float32"]
KvDtype = Literal["auto", "fp8", "int8"]
Quantization = Literal["auto", "fp8"]
Preemption = Literal["recompute", "swap"]
Batching = Literal["continuous", "static"]
ProfileName = Literal["latency", "balanced", "throughput"]


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """Defaults for settings that were not given: sequences and tokens in one step, and how much prompts may slow it.

    The last one is for servers; offline nobody waits for the next token.
    """

    max_running_requests: int
    max_batched_tokens: int
    prefill_slowdown: float


# A step's length is what others wait while a prompt enters: `prefill_slowdown` bounds it, and its tokens where nothing
# is measured yet. More tokens amortise what each step costs anyway, and more rows read the weights for more at once.
PROFILES: dict[ProfileName, BatchProfile] = {
    "latency": BatchProfile(max_running_requests=16, max_batched_tokens=256, prefill_slowdown=1.3),
    "balanced": BatchProfile(max_running_requests=64, max_batched_tokens=512, prefill_slowdown=1.5),
    "throughput": BatchProfile(max_running_requests=256, max_batched_tokens=1024, prefill_slowdown=4.0),
}
# A GPU reads its weights for hundreds of rows in the time it reads them for one.
GPU_PROFILES: dict[ProfileName, BatchProfile] = {
    "latency": BatchProfile(max_running_requests=32, max_batched_tokens=512, prefill_slowdown=1.3),
    "balanced": BatchProfile(max_running_requests=256, max_batched_tokens=2048, prefill_slowdown=1.5),
    "throughput": BatchProfile(max_running_requests=512, max_batched_tokens=8192, prefill_slowdown=4.0),
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One field per engine knob. Lengths in tokens, `kv_memory` in bytes, counts of sequences.

    `profile` sets what is None and has a default in `PROFILES` or `GPU_PROFILES`. `quantization` and `kv_dtype` other
    than "auto" (as the model has them) are for GPUs. `static_wait_ms` counts with static batching only,
    `swap_memory` (bytes) with preemption by swap. `prefill_slowdown` None: prompts are computed as fast as they can be,
    whoever waits. `overlap` None: the next step is launched while the last computes, where the backend can.
    `tensor_parallel_size` is over how many GPUs the model is spread; `kv_memory` is then what each of them gives.
    `cuda_graphs` None: decoding steps are recorded and launched as one, on a GPU.
    """

    model: str = "smollm2"
    backend: BackendName = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    kv_dtype: KvDtype = "auto"
    max_model_len: int | None = None
    kv_memory: int | None = None
    block_size: int | None = None
    prefix_caching: bool = True
    max_running_requests: int | None = None
    max_batched_tokens: int | None = None
    max_queued_requests: int = 1024
    chunked_prefill: bool = True
    prefill_slowdown: float | None = None
    overlap: bool | None = None
    tensor_parallel_size: int = 1
    cuda_graphs: bool | None = None
    threads: int | None = None
    profile: ProfileName = "balanced"
    batching: Batching = "continuous"
    static_wait_ms: int = 50
    preemption: Preemption = "recompute"
    swap_memory: int | None = None
    cache_policy: PolicyName = "chat"
