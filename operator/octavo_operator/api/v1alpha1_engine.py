"""Engine of LLMDeployment v1alpha1: the knobs of octavo-server that people tune; `extraArgs` for the rest.

The knobs are declared in `octavo_protocol.engine_settings`; `with_knobs` makes those of a block its fields. What the
engine, its profile or its device decide has no default in the API: "given" must be told from "left open".
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from octavo_operator.api import knobs
from octavo_operator.api.base import OBJECT_NAME, ApiBlock, ObjectName, Rule
from octavo_operator.api.knobs import with_knobs
from octavo_operator.api.model_uri import PATTERN, REVISION, uri_rules
from octavo_protocol.engine_settings import EngineSettings

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
    "speculation-model",
    "adapters-file",
)
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


@with_knobs("kv")
class Kv(ApiBlock):
    """The KV cache pool."""

    RULES = (
        Rule(
            rule="!has(self.memory) || !quantity(string(self.memory)).isLessThan(quantity('1Mi'))",
            message="engine.kv.memory must be at least 1Mi; a unit may be missing, as in 512Mi",
            found="'engine.kv.memory is ' + string(self.memory) + ' bytes: a unit is missing, as in 512Mi'",
        ),
        Rule(
            rule="!has(self.memory) || !has(self.memoryPercent)",
            message="at most one of engine.kv.memory and engine.kv.memoryPercent may be set: both are the size of the "
            "KV cache pool",
        ),
    )


@with_knobs("parallelism")
class Parallelism(ApiBlock):
    """How the GPUs of one replica share a model."""


@with_knobs("scheduler")
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
            message="scheduler.staticWaitMilliseconds requires scheduler.batching static; leave it out, or set "
            "batching to static",
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


class DraftModelSpec(ApiBlock):
    """DraftModelSpec defines the smaller model that guesses tokens."""

    RULES = uri_rules("speculation.model")

    uri: str = Field(
        max_length=512,
        pattern=PATTERN,
        description="uri is the location of the draft model's weights, which must have the vocabulary of the model. "
        "The schemes are those of spec.model.uri. Each pod downloads a draft model of scheme hf, s3 or gs before the "
        "server starts. If both models have the same scheme, it is downloaded with the Secret of "
        "spec.model.credentialsSecretRef.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=REVISION,
        description="revision is the revision of the draft model to download: a branch, tag or commit for `hf://`, and "
        "a hash for `s3://` and `gs://`. If unset, it is the branch main of a hub repository, or the files that the "
        "bucket has. A branch or tag is resolved to a commit once, and all replicas load that commit. Not allowed for "
        "other schemes.",
    )


@with_knobs("speculation")
class SpeculationSpec(ApiBlock):
    """How several tokens of an answer are verified in one step."""

    RULES = (
        Rule(
            rule="!(has(self.maxTokens) || has(self.recentTokens)) || (has(self.method) && self.method != 'none')",
            message="speculation.maxTokens and speculation.recentTokens need speculation.method; leave them out, or "
            "set the method",
        ),
        Rule(
            rule="!has(self.recentTokens) || !has(self.method) || self.method != 'draft'",
            message="speculation.recentTokens needs speculation.method ngram; leave it out, or set method to ngram",
        ),
        Rule(
            rule="has(self.model) == (has(self.method) && self.method == 'draft')",
            message="speculation.method draft and speculation.model need each other; set both, or leave model out",
        ),
    )

    model: DraftModelSpec | None = Field(
        default=None,
        description="model is the draft model of method draft: a smaller model of the same family. Each block of the "
        "KV cache pool then has room for the K and V of both models. If unset, there is no draft model.",
    )


@with_knobs("adapters")
class AdapterLimits(ApiBlock):
    """How many LoRA adapters a replica holds, and how large they may be."""


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


@with_knobs("")
class EngineKnobs(ApiBlock):
    """Settings of the server that are in no block."""


class EngineSpec(EngineKnobs):
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
            message="engine.cachePolicy requires engine.prefixCaching; set prefixCaching to true, or leave cachePolicy "
            "out",
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
    parallelism: Parallelism = Field(
        default=Parallelism(), description="parallelism defines how the GPUs of one replica share the model."
    )
    kv: Kv = Field(default=Kv(), description="kv defines the KV cache pool of one replica.")
    speculation: SpeculationSpec = Field(
        default=SpeculationSpec(),
        description="speculation defines how guessed tokens are verified, several in one step.",
    )
    adapters: AdapterLimits = Field(
        default=AdapterLimits(), description="adapters defines how many LoRA adapters a replica holds, and their size."
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

    @property
    def settings(self) -> EngineSettings:
        """The knobs as the engine takes them; what is left open has the engine's default."""
        return knobs.engine_settings(self)
