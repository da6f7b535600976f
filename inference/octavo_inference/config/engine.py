"""Settings of an engine. They are declared where the operator reads them too: `octavo_protocol.engine_settings`."""

from octavo_protocol.engine_settings import (
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
    Preemption,
    ProfileName,
    Quantization,
)

__all__ = [
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
    "Preemption",
    "ProfileName",
    "Quantization",
]
