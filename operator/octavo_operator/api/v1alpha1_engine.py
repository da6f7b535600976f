"""Engine of LLMDeployment v1alpha1: the knobs of octavo-server that people tune; `extraArgs` for the rest.

What the engine, its profile or its device decide has no default here: "given" must be told from "left open".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import OBJECT_NAME, ApiBlock, Bytes, ObjectName, Rule

# Flags that describe where the operator put things: pods made with other values could not be reached or drained.
RESERVED_FLAGS = (
    "config",
    "model",
    "served-model-name",
    "host",
    "port",
    "admin-host",
    "admin-port",
    "admin-key-file",
    "drain-timeout",
    "tensor-parallel-size",
)
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class Kv(ApiBlock):
    """The KV cache pool."""

    RULES = (
        Rule(
            rule="!has(self.memory) || !quantity(string(self.memory)).isLessThan(quantity('1Mi'))",
            message="engine.kv.memory must be at least 1Mi; a unit may be missing, as in 512Mi",
            found="'engine.kv.memory is ' + string(self.memory) + ' bytes: a unit is missing, as in 512Mi'",
        ),
    )

    memory: Bytes | None = Field(
        default=None,
        description="memory is the size of the KV cache pool of one replica, a quantity of at least 1Mi. If a replica "
        "has several GPUs, it is the size on each GPU. If unset, the server derives it from the free memory of the "
        "device.",
    )
    block_size: Literal[16, 32, 64, 128] | None = Field(
        default=None,
        description="blockSize is the number of tokens in one KV block: 16, 32, 64 or 128. The value 16 requires a "
        "GPU. Defaults to 16 on a GPU, and to 32 on a CPU.",
    )
    dtype: Literal["auto", "fp8", "int8"] | None = Field(
        default=None,
        description="dtype is the data type of the KV cache on a GPU. fp8 and int8 store about twice the tokens in "
        "the same memory, and require a GPU. auto is the data type of the computation. Defaults to auto.",
    )


class Parallelism(ApiBlock):
    """How the GPUs of one replica share a model."""

    tensor: int = Field(
        default=1,
        ge=1,
        le=16,
        description="tensor is the number of GPUs over which each layer of the model is split (tensor parallelism). "
        "Above 1, resources.gpu.count must have the same value. The model's attention heads and the inner size of its "
        "MLP must be divisible by it. The number of key-value heads must be a multiple or a divisor of it. Must be "
        "between 1 and 16. Defaults to 1.",
    )


class SchedulerSpec(ApiBlock):
    """Bounds of one engine step, of the queue before it, and what happens when there is no room."""

    RULES = (
        Rule(
            rule="!has(self.prefillSlowdownPercent) || self.chunkedPrefill",
            message="scheduler.prefillSlowdownPercent needs scheduler.chunkedPrefill: a prompt that is not split slows "
            "a step by all it has; set chunkedPrefill to true, or leave prefillSlowdownPercent out",
        ),
        Rule(
            rule="!has(self.staticWaitMilliseconds) || (has(self.batching) && self.batching == 'static')",
            message="scheduler.staticWaitMilliseconds needs scheduler.batching static: continuous batching waits for "
            "nobody; leave it out, or set batching to static",
        ),
        Rule(
            rule="!has(self.swapMemory) || (has(self.preemption) && self.preemption == 'swap')",
            message="scheduler.swapMemory needs scheduler.preemption swap: recompute keeps nothing; leave it out, or "
            "set preemption to swap",
        ),
        Rule(
            rule="!has(self.swapMemory) || !quantity(string(self.swapMemory)).isLessThan(quantity('1Mi'))",
            message="scheduler.swapMemory must be at least 1Mi; a unit may be missing, as in 512Mi",
            found="'scheduler.swapMemory is ' + string(self.swapMemory) + ' bytes: a unit is missing, as in 512Mi'",
        ),
    )

    max_running_requests: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="maxRunningRequests is the maximum number of sequences that are computed at the same time. Must "
        "be between 1 and 4096. Defaults to the value of engine.profile.",
    )
    max_batched_tokens: int | None = Field(
        default=None,
        ge=16,
        le=262144,
        description="maxBatchedTokens is the maximum number of prompt and output tokens in one engine step. It cannot "
        "be less than maxRunningRequests. Must be between 16 and 262144. Defaults to the value of engine.profile.",
    )
    max_queued_requests: int | None = Field(
        default=None,
        ge=0,
        le=65536,
        description="maxQueuedRequests is the maximum number of requests that wait in one replica. Further requests "
        "are rejected with status 503. If 0, a request that cannot start immediately is rejected. Must be between 0 "
        "and 65536. Defaults to 1024.",
    )
    chunked_prefill: bool = Field(
        default=True,
        description="chunkedPrefill indicates whether long prompts are computed in chunks, in the same steps as "
        "decode tokens. If false, each prompt is computed in one step. Defaults to true.",
    )
    prefill_slowdown_percent: int | None = Field(
        default=None,
        ge=105,
        le=100_000,
        description="prefillSlowdownPercent is the maximum duration of a step with a prompt among 16 running "
        "requests, in percent of a step without it. Lower values give even streams; higher values give a shorter time "
        "to first token. Requires chunkedPrefill. Must be between 105 and 100000. Defaults to the value of "
        "engine.profile.",
    )
    batching: Literal["continuous", "static"] | None = Field(
        default=None,
        description="batching is the method by which requests are batched. continuous lets requests join and leave "
        "the batch at each step. static completes each batch before the next one starts, for comparisons. Defaults to "
        "continuous.",
    )
    static_wait_milliseconds: int | None = Field(
        default=None,
        ge=0,
        le=60_000,
        description="staticWaitMilliseconds is the maximum time that a static batch waits for more requests, in "
        "milliseconds. If 0, it does not wait. Requires batching static. Must be between 0 and 60000. Defaults to 50.",
    )
    preemption: Literal["recompute", "swap"] | None = Field(
        default=None,
        description="preemption is the treatment of the KV blocks of a preempted sequence. recompute frees them and "
        "computes them again. swap copies them to swapMemory and back. Defaults to recompute.",
    )
    swap_memory: Bytes | None = Field(
        default=None,
        description="swapMemory is the size of the memory for KV blocks of preempted sequences, a quantity of at "
        "least 1Mi. It is host memory in addition to the KV cache pool. Requires preemption swap. Defaults to a "
        "quarter of the pool.",
    )


class KeyRef(ApiBlock):
    """KeyRef selects a key of a Secret or ConfigMap in the same namespace."""

    name: ObjectName = Field(description="name is the name of the Secret or ConfigMap.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._A-Za-z0-9]+$",
        description="key is the key to select. It must exist.",
    )


class EnvSource(ApiBlock):
    """EnvSource is the source of the value of an environment variable."""

    RULES = (
        Rule(
            rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            message="valueFrom needs one of secretKeyRef and configMapKeyRef",
        ),
    )

    secret_key_ref: KeyRef | None = Field(
        default=None,
        description="secretKeyRef selects a key of a Secret in the same namespace. Exactly one of secretKeyRef and "
        "configMapKeyRef must be set.",
    )
    config_map_key_ref: KeyRef | None = Field(
        default=None,
        description="configMapKeyRef selects a key of a ConfigMap in the same namespace. Exactly one of secretKeyRef "
        "and configMapKeyRef must be set.",
    )


class Env(ApiBlock):
    """Env is an environment variable of the server container."""

    RULES = (
        Rule(
            rule="has(self.value) != has(self.valueFrom)",
            message="a variable needs one of value and valueFrom",
            found="'variable ' + self.name + ' has ' + (has(self.value) ? 'both value and valueFrom' : "
            "'neither value nor valueFrom') + ': it needs one of them'",
        ),
        # Where NVIDIA's runtime is the nodes' default, it would show a container all GPUs of its node.
        Rule(
            rule="!(self.name in ['NVIDIA_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES', 'NVIDIA_DRIVER_CAPABILITIES'])",
            message="which GPUs a container sees is decided by resources.gpu: leave the variable out",
            found="'variable ' + self.name + ': which GPUs a container sees is decided by resources.gpu: leave it out'",
        ),
    )

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=_VARIABLE,
        description="name is the name of the environment variable. It consists of letters, digits and underscores, "
        "and does not start with a digit.",
    )
    value: str | None = Field(
        default=None,
        max_length=2048,
        description="value is the value of the environment variable. Exactly one of value and valueFrom must be set.",
    )
    value_from: EnvSource | None = Field(
        default=None,
        description="valueFrom is the source of the value of the environment variable. Exactly one of value and "
        "valueFrom must be set.",
    )


class ObjectRef(ApiBlock):
    """ObjectRef names a Secret or ConfigMap in the same namespace."""

    name: str = Field(
        min_length=1, max_length=253, pattern=OBJECT_NAME, description="name is the name of the Secret or ConfigMap."
    )


class EnvFrom(ApiBlock):
    """EnvFrom is a Secret or ConfigMap whose keys become environment variables of the server container."""

    RULES = (
        Rule(
            rule="has(self.secretRef) != has(self.configMapRef)",
            message="an entry of engine.envFrom needs one of secretRef and configMapRef",
        ),
    )

    prefix: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern=_VARIABLE,
        description="prefix is prepended to each key to form the name of the environment variable. If unset, the keys "
        "are the names.",
    )
    secret_ref: ObjectRef | None = Field(
        default=None,
        description="secretRef is the Secret to read. Exactly one of secretRef and configMapRef must be set.",
    )
    config_map_ref: ObjectRef | None = Field(
        default=None,
        description="configMapRef is the ConfigMap to read. Exactly one of secretRef and configMapRef must be set.",
    )


class EngineSpec(ApiBlock):
    """How the inference server runs."""

    RULES = (
        *(
            Rule(
                rule=f"!has(self.extraArgs) || self.extraArgs.all(a, a != '--{flag}' && !a.startsWith('--{flag}='))",
                message=f"engine.extraArgs must not set --{flag}: the operator sets it",
            )
            for flag in RESERVED_FLAGS
        ),
        Rule(
            rule="!has(self.cachePolicy) || self.prefixCaching",
            message="engine.cachePolicy needs engine.prefixCaching: it says how long cached prefixes are kept; set "
            "prefixCaching to true, or leave cachePolicy out",
        ),
        Rule(
            rule="!has(self.scheduler) || self.scheduler.chunkedPrefill || !has(self.scheduler.maxBatchedTokens) || "
            "!has(self.maxModelLen) || self.scheduler.maxBatchedTokens >= self.maxModelLen",
            message="without scheduler.chunkedPrefill, scheduler.maxBatchedTokens must not be less than "
            "engine.maxModelLen: the longest prompt is computed in one step",
            found="'scheduler.maxBatchedTokens is %d and engine.maxModelLen is %d: without chunkedPrefill the longest "
            "prompt is computed in one step'.format([self.scheduler.maxBatchedTokens, self.maxModelLen])",
        ),
    )

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        pattern=r"^[^\s]+$",
        description="image is the container image of the server. If unset, the image of the installation is used. A "
        "change of the installation's image affects running replicas only with the next change of their spec.",
    )
    profile: Literal["latency", "balanced", "throughput"] | None = Field(
        default=None,
        description="profile is the source of defaults for scheduler.maxRunningRequests, maxBatchedTokens and "
        "prefillSlowdownPercent, in this order. On a CPU, latency is 16, 256, 130; balanced is 64, 512, 150; "
        "throughput is 256, 1024, 400. On a GPU, latency is 32, 512, 130; balanced is 256, 2048, 150; throughput is "
        "512, 8192, 400. Fields that are set take precedence. Defaults to balanced.",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto",
        description="dtype is the data type of the computation. auto is the type that suits the weights and the "
        "device. bfloat16 converts quantised weights, which is more exact, but slower and larger. float32 is for "
        "comparisons. Defaults to auto.",
    )
    quantization: Literal["auto", "fp8"] | None = Field(
        default=None,
        description="quantization is the format of the weights on a GPU. fp8 rounds them to 8 bits, and requires a "
        "GPU. auto keeps the format of the checkpoint. Defaults to auto.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="maxModelLen is the maximum length of a sequence (prompt and output), in tokens. Must be between "
        "16 and 10000000. Defaults to the context length of the model.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="threads is the number of threads for computation on a CPU. Must be between 1 and 1024. Defaults "
        "to resources.cpu, rounded down.",
    )
    parallelism: Parallelism = Field(
        default=Parallelism(), description="parallelism defines how the GPUs of one replica share the model."
    )
    kv: Kv = Field(default=Kv(), description="kv defines the KV cache pool of one replica.")
    prefix_caching: bool = Field(
        default=True,
        description="prefixCaching indicates whether KV blocks are kept for later requests with the same prefix. If "
        "false, each prompt is computed in full. Defaults to true.",
    )
    cache_policy: Literal["chat", "api", "batch"] | None = Field(
        default=None,
        description="cachePolicy is the retention of cached prefixes for requests that specify no policy. chat "
        "retains them for 24 hours. api retains them for 1 hour, in at most half of the pool. batch retains them for "
        "6 minutes, in at most a tenth of the pool. Requires prefixCaching. Defaults to chat.",
    )
    scheduler: SchedulerSpec = Field(
        default=SchedulerSpec(), description="scheduler defines the limits of an engine step and of the request queue."
    )
    env: Annotated[
        tuple[Env, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        max_length=32,
        description="env is a list of environment variables of the server container. They take precedence over "
        "envFrom. If empty, none are added.",
    )
    env_from: tuple[EnvFrom, ...] = Field(
        default=(),
        max_length=16,
        description="envFrom is a list of Secrets and ConfigMaps whose keys become environment variables of the "
        "server container. Variables of env take precedence. If empty, none are added.",
    )
    extra_args: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        default=(),
        max_length=32,
        description="extraArgs are additional flags of octavo-server. They take precedence over the fields of engine. "
        "Flags that the operator sets are not allowed. If empty, there are none.",
    )
