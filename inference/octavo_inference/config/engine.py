"""Settings of an engine, declared in `octavo_protocol.engine_settings`, where the operator reads them too."""

from octavo_protocol.engine_settings import (
    DEFAULT_POOLING,
    GPU_PROFILES,
    KV_MEMORY_PERCENT,
    PROFILES,
    BackendName,
    Batching,
    BatchProfile,
    Dtype,
    EngineSettings,
    KvDtype,
    PolicyName,
    PoolingName,
    Preemption,
    ProfileName,
    Quantization,
    RelevanceName,
)

__all__ = [
    "DEFAULT_POOLING",
    "GPU_PROFILES",
    "KV_MEMORY_PERCENT",
    "PROFILES",
    "BackendName",
    "BatchProfile",
    "Batching",
    "Dtype",
    "EngineSettings",
    "KvDtype",
    "PolicyName",
    "PoolingName",
    "Preemption",
    "ProfileName",
    "Quantization",
    "RelevanceName",
]
