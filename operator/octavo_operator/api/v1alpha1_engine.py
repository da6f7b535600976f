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
        description="Memory of the KV pool of one replica, e.g. `4Gi`; what the device leaves when not given.",
    )
    block_size: Literal[16, 32, 64, 128] | None = Field(
        default=None, description="Tokens in one KV block; what suits the device when not given (CPU: 32, GPU: 16)."
    )
    dtype: Literal["auto", "fp8", "int8"] | None = Field(
        default=None,
        description="How K and V are stored on a GPU: `fp8` and `int8` hold about twice the tokens in the same memory; "
        "`auto`, as when not given, is the computation's format.",
    )


class Parallelism(ApiBlock):
    """How the GPUs of one replica share a model."""

    tensor: int = Field(
        default=1,
        ge=1,
        le=16,
        description="GPUs that share every layer of the model, each with a part of its heads and columns; "
        "`resources.gpu.count` must be as many. The model's attention heads and the inner size of its MLP must be "
        "divisible by it, and its key-value heads too, or it by them.",
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
        description="Sequences computed at the same time; what the profile says when not given.",
    )
    max_batched_tokens: int | None = Field(
        default=None, ge=16, le=262144, description="Tokens in one engine step; what the profile says when not given."
    )
    max_queued_requests: int | None = Field(
        default=None, ge=0, le=65536, description="Requests that may wait in one replica before it answers 503."
    )
    chunked_prefill: bool = Field(default=True, description="Compute long prompts in pieces between decode tokens.")
    prefill_slowdown_percent: int | None = Field(
        default=None,
        ge=105,
        le=100_000,
        description="How long a step may take when a prompt enters beside 16 running answers, 100 being as long as "
        "without it. Low: even streams; high: early first tokens. What the profile says when not given.",
    )
    batching: Literal["continuous", "static"] | None = Field(
        default=None,
        description="`static` runs one batch to its end before the next, to measure against; `continuous` when not "
        "given.",
    )
    static_wait_milliseconds: int | None = Field(
        default=None, ge=0, le=60_000, description="How long a static batch waits to fill; 50 when not given."
    )
    preemption: Literal["recompute", "swap"] | None = Field(
        default=None,
        description="What happens to the KV of a sequence that has to make room: computed again, or copied to "
        "`swapMemory` and back. `recompute` when not given.",
    )
    swap_memory: Bytes | None = Field(
        default=None,
        description="Memory for KV of preempted sequences, beside the pool; a quarter of the pool when not given.",
    )


class KeyRef(ApiBlock):
    """One key of a Secret or ConfigMap of the same namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$", description="Key in the object.")


class EnvSource(ApiBlock):
    """Where a variable's value comes from."""

    RULES = (
        Rule(
            rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            message="valueFrom needs one of secretKeyRef and configMapKeyRef",
        ),
    )

    secret_key_ref: KeyRef | None = Field(default=None, description="Key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="Key of a ConfigMap.")


class Env(ApiBlock):
    """One environment variable of the server container."""

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

    name: str = Field(min_length=1, max_length=253, pattern=_VARIABLE, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=2048, description="The value itself.")
    value_from: EnvSource | None = Field(default=None, description="The value from an object.")


class ObjectRef(ApiBlock):
    """A Secret or ConfigMap of the same namespace."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME, description="Name of the object.")


class EnvFrom(ApiBlock):
    """An object whose keys are environment variables of the server container."""

    RULES = (
        Rule(
            rule="has(self.secretRef) != has(self.configMapRef)",
            message="an entry of engine.envFrom needs one of secretRef and configMapRef",
        ),
    )

    prefix: str | None = Field(
        default=None, min_length=1, max_length=64, pattern=_VARIABLE, description="Put before the name of every key."
    )
    secret_ref: ObjectRef | None = Field(default=None, description="A Secret.")
    config_map_ref: ObjectRef | None = Field(default=None, description="A ConfigMap.")


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
        description="Image of the server; the installation's own when not given. An installation that changes its "
        "image changes running replicas only with their next change of spec.",
    )
    profile: Literal["latency", "balanced", "throughput"] | None = Field(
        default=None,
        description="What scheduler.maxRunningRequests, maxBatchedTokens and prefillSlowdownPercent are when they are "
        "not given: 16, 256, 130 (`latency`), 64, 512, 150 (`balanced`, the default) or 256, 1024, 400 (`throughput`); "
        "on a GPU 32, 512, 130 (`latency`), 256, 2048, 150 (`balanced`) or 512, 8192, 400 (`throughput`).",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto",
        description="Number format of the computation; `auto` is what the weights and the device suggest.",
    )
    quantization: Literal["auto", "fp8"] | None = Field(
        default=None,
        description="How weights are kept on a GPU: `fp8` rounds them to 8 bits; `auto`, as when not given, keeps them "
        "as the checkpoint has them.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus answer, in tokens; the model's own when not given.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads of CPU computation; `resources.cpu` rounded down when not given.",
    )
    parallelism: Parallelism = Field(default=Parallelism(), description="How the GPUs of one replica share the model.")
    kv: Kv = Field(default=Kv(), description="The KV cache pool.")
    prefix_caching: bool = Field(
        default=True, description="Keep KV blocks of finished prompts for requests that share them."
    )
    cache_policy: Literal["chat", "api", "batch"] | None = Field(
        default=None,
        description="How long they are kept for requests that do not say: a day (`chat`, when not given), an hour "
        "(`api`) or minutes and in a tenth of the pool (`batch`).",
    )
    scheduler: SchedulerSpec = Field(default=SchedulerSpec(), description="Bounds of a step and of the queue.")
    env: Annotated[
        tuple[Env, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(default=(), max_length=32, description="Environment variables of the server container.")
    env_from: tuple[EnvFrom, ...] = Field(
        default=(),
        max_length=16,
        description="Secrets and ConfigMaps whose keys are variables of the server container; `env` wins over them.",
    )
    extra_args: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        default=(), max_length=32, description="Further flags of octavo-server; they win over the fields above."
    )
