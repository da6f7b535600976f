"""Status of LLMDeployment v1alpha1: what the operator writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import ApiBlock, Time
from octavo_operator.api.v1alpha1_adapters import MOST


class Condition(ApiBlock):
    """Condition describes one aspect of the current state of the LLMDeployment."""

    type: str = Field(
        max_length=316, description="type is the type of the condition in CamelCase, for example Ready or Degraded."
    )
    status: Literal["True", "False", "Unknown"] = Field(
        description="status is the status of the condition: True, False or Unknown."
    )
    reason: str = Field(
        max_length=1024,
        description="reason is a programmatic identifier in CamelCase for the cause of the current status.",
    )
    message: str = Field(
        max_length=4096,
        description="message is a human-readable explanation of the current status. It names the next step where one "
        "is required.",
    )
    last_transition_time: Time = Field(
        description="lastTransitionTime is the last time at which status changed. A change of reason or message does "
        "not update it."
    )
    observed_generation: int = Field(
        ge=0,
        description="observedGeneration is the value of metadata.generation for which the condition was determined. "
        "If metadata.generation is greater, the condition is out of date.",
    )


class LoadStatus(ApiBlock):
    """LoadStatus is the load of all replicas together."""

    kv_occupancy: str | None = Field(
        default=None,
        max_length=8,
        description="kvOccupancy is the share of the KV cache pools that live requests hold, in percent, for example "
        "`41%`. It is unset if no ready replica sends a load report.",
    )
    running_requests: int = Field(
        default=0,
        ge=0,
        description="runningRequests is the number of sequences that are being computed. Defaults to 0.",
    )
    queued_requests: int = Field(
        default=0, ge=0, description="queuedRequests is the number of sequences that wait in replicas. Defaults to 0."
    )
    held_requests: int = Field(
        default=0,
        ge=0,
        description="heldRequests is the number of requests that gateways hold until a replica can accept them. "
        "Defaults to 0.",
    )
    updated_at: Time = Field(
        description="updatedAt is the time at which the load was last written. It is written after a change, and at "
        "most every 30 seconds."
    )


class CapacityStatus(ApiBlock):
    """CapacityStatus is the measured and the estimated capacity of one replica."""

    cold_start_seconds: int | None = Field(
        default=None,
        ge=0,
        description="coldStartSeconds is the time from the creation of the most recently started pod to its "
        "readiness, in seconds. It is unset until a start was measured.",
    )
    estimated_memory_bytes: int | None = Field(
        default=None,
        ge=0,
        description="estimatedMemoryBytes is the estimated memory of one replica under full load, in bytes. It is "
        "unset for replicas with GPUs, and if the model's needs are unknown.",
    )
    estimated_gpu_memory_bytes: int | None = Field(
        default=None,
        ge=0,
        description="estimatedGpuMemoryBytes is the estimated memory of each GPU of one replica under full load, in "
        "bytes. It is unset for replicas without GPUs, and if the model's needs or the memory of the GPUs are unknown.",
    )
    estimated_kv_tokens_per_replica: int | None = Field(
        default=None,
        ge=0,
        description="estimatedKvTokensPerReplica is the estimated number of tokens in the KV cache pool of one "
        "replica. With GPUs, it is that of the smallest GPU of the cluster on which a replica fits. It is unset if the "
        "model's needs or the memory of the GPUs are unknown.",
    )
    kv_tokens_per_replica: int | None = Field(
        default=None,
        ge=0,
        description="kvTokensPerReplica is the measured number of tokens in the KV cache pool of one replica. It is "
        "unset until a replica has sent a load report.",
    )


class DraftModelStatus(ApiBlock):
    """DraftModelStatus is the result of the inspection of the draft model."""

    identity: str = Field(
        max_length=16, description="identity is a hash of the uri, the revision and the name of the Secret."
    )
    resolved_revision: str | None = Field(
        default=None,
        max_length=128,
        description="resolvedRevision is the revision that every replica loads, as status.model.resolvedRevision is "
        "for the model. It is unset for `pvc://`, and if a registry gives no digest.",
    )
    architecture: str | None = Field(
        default=None,
        max_length=128,
        description="architecture is the model family, for example llama. It is unset if it is unknown.",
    )
    parameters: int | None = Field(
        default=None,
        ge=0,
        description="parameters is the number of parameters of the draft model. It is unset if it is unknown.",
    )
    format: str | None = Field(
        default=None,
        max_length=128,
        description="format is the format of its linear layers, as status.model.format is for the model. It is unset "
        "if it is unknown.",
    )
    weights_bytes: int | None = Field(
        default=None,
        ge=0,
        description="weightsBytes is the memory of its weights in one replica, in bytes. It is unset if it is unknown.",
    )
    kv_bytes_per_token: int | None = Field(
        default=None,
        ge=0,
        description="kvBytesPerToken is the memory of one token in its part of a block of the KV cache pool, in bytes. "
        "It is unset if it is unknown.",
    )


class ModelStatus(ApiBlock):
    """ModelStatus is the result of the model inspection, which takes place before pods are created."""

    identity: str = Field(
        max_length=16,
        description="identity is a hash of the uri, the revision, the name of the Secret and the name of the cache "
        "claim.",
    )
    resolved_revision: str | None = Field(
        default=None,
        max_length=128,
        description="resolvedRevision is the revision that every replica loads. For `hf://` it is a commit, and a "
        "later change of the branch does not affect it. For `s3://` and `gs://` it is a hash of the names, sizes and "
        "ETags of the files. For `oci://` it is the digest of the image, unset if its registry gives none. It is unset "
        "for `pvc://`.",
    )
    architecture: str | None = Field(
        default=None,
        max_length=128,
        description="architecture is the model family, for example llama. It is unset if it is unknown.",
    )
    parameters: int | None = Field(
        default=None,
        ge=0,
        description="parameters is the number of parameters of the model. It is unset if it is unknown.",
    )
    format: str | None = Field(
        default=None,
        max_length=128,
        description="format is the format of the model's linear layers, for example `bf16`, `gptq int4 g128` or "
        "`Q4_K, Q6_K`. Of several formats, that of most parameters is first. It is unset if it is unknown.",
    )
    file_bytes: int | None = Field(
        default=None,
        ge=0,
        description="fileBytes is the size of the weights' files, in bytes. It is unset if it is unknown.",
    )
    weights_bytes: int | None = Field(
        default=None,
        ge=0,
        description="weightsBytes is the memory of the weights in one replica, in bytes; with GPUs, the memory on "
        "each GPU. It is unset if it is unknown.",
    )
    kv_bytes_per_token: int | None = Field(
        default=None,
        ge=0,
        description="kvBytesPerToken is the memory of one token in the KV cache pool, in bytes; with GPUs, the memory "
        "on each GPU. It is unset if it is unknown.",
    )
    context_length: int | None = Field(
        default=None,
        ge=0,
        description="contextLength is the maximum length of a sequence that the model supports, in tokens. It is "
        "unset if it is unknown.",
    )
    draft: DraftModelStatus | None = Field(
        default=None,
        description="draft is the result of the inspection of the draft model. It is unset without "
        "spec.engine.speculation.model.",
    )


class AdapterStatus(ApiBlock):
    """AdapterStatus is the state of one adapter of spec.model.adapters."""

    name: str = Field(max_length=128, description="name is the name of the adapter.")
    identity: str | None = Field(
        default=None,
        max_length=16,
        description="identity is a hash of the uri and the revision of the spec that was inspected. It is unset until "
        "the adapter was inspected.",
    )
    revision: str | None = Field(
        default=None,
        max_length=160,
        description="revision is the revision that every replica loads, as status.model.resolvedRevision is for the "
        "model. It is unset until the adapter was inspected, and for `pvc://`.",
    )
    rank: int | None = Field(
        default=None,
        ge=0,
        description="rank is the largest rank of its matrices. It is unset if it is unknown.",
    )
    file_bytes: int | None = Field(
        default=None,
        ge=0,
        description="fileBytes is the size of the adapter's weights, tokenizer and template, in bytes. It is unset if "
        "it is unknown.",
    )
    base_model: str | None = Field(
        default=None,
        max_length=200,
        description="baseModel is the model that the adapter was trained on, as its configuration names it. It is "
        "unset if that is no name of a hub.",
    )
    state: Literal["Pending", "Loading", "Ready", "Failed"] = Field(
        description="state is the state of the adapter. It is Pending until it was inspected and a replica is ready, "
        "Loading until a replica can use it, Ready from then on, or Failed."
    )
    ready_replicas: int = Field(
        default=0,
        ge=0,
        description="readyReplicas is the number of ready replicas that can use the adapter. Defaults to 0.",
    )
    message: str | None = Field(
        default=None,
        max_length=1024,
        description="message is a human-readable explanation of the state. It is unset if there is nothing to do.",
    )


class ScalingEvent(ApiBlock):
    """ScalingEvent is one change of the number of replicas by the built-in autoscaler."""

    time: Time = Field(description="time is the time of the change.")
    from_: int = Field(alias="from", ge=0, description="from is the number of replicas before the change.")
    to: int = Field(ge=0, description="to is the desired number of replicas after the change.")
    reason: str = Field(
        max_length=128, description="reason is a programmatic identifier in CamelCase for the cause of the change."
    )
    inputs: str = Field(
        max_length=1024, description="inputs are the signals from which the decision was made, as text."
    )


class AutoscalingStatus(ApiBlock):
    """AutoscalingStatus is the current decision of the built-in autoscaler, and its latest changes."""

    reason: str = Field(
        max_length=128,
        description="reason is a programmatic identifier in CamelCase for the cause of the current decision.",
    )
    message: str = Field(
        max_length=1024, description="message is a human-readable explanation of the current decision."
    )
    recommended: int = Field(ge=0, description="recommended is the number of replicas that the autoscaler recommends.")
    last_scale_time: Time | None = Field(
        default=None,
        description="lastScaleTime is the last time at which the autoscaler changed the number of replicas. It is "
        "unset if there was no change.",
    )
    history: tuple[ScalingEvent, ...] = Field(
        default=(),
        max_length=10,
        description="history is the list of the latest changes of the number of replicas, oldest first. It is empty "
        "if there was no change.",
    )


class PodFailure(ApiBlock):
    """PodFailure is a failure of a pod, or of the creation of pods."""

    pod: str | None = Field(
        default=None, max_length=253, description="pod is the name of the pod. It is unset if no pod can be created."
    )
    container: str | None = Field(
        default=None,
        max_length=253,
        description="container is the name of the container. It is unset if the failure is not of a container.",
    )
    reason: str = Field(
        max_length=128, description="reason is a programmatic identifier in CamelCase for the kind of failure."
    )
    message: str = Field(
        max_length=1024, description="message is a human-readable explanation of the failure, with the next step."
    )
    count: int = Field(
        default=1, ge=0, description="count is the number of times the failure was observed. Defaults to 1."
    )
    last_time: Time | None = Field(
        default=None,
        description="lastTime is the time at which the failure was last observed. It is unset if it is unknown.",
    )


class LLMDeploymentStatus(ApiBlock):
    """Status is the most recently observed state of the LLMDeployment, written by the operator."""

    observed_generation: int = Field(
        ge=0, description="observedGeneration is the value of metadata.generation that the operator last observed."
    )
    replicas: int = Field(
        default=0, ge=0, description="replicas is the number of pods that are not terminating. Defaults to 0."
    )
    ready_replicas: int = Field(
        default=0,
        ge=0,
        description="readyReplicas is the number of pods that are ready and serve requests. Defaults to 0.",
    )
    updated_replicas: int = Field(
        default=0,
        ge=0,
        description="updatedReplicas is the number of non-terminating pods of the current spec. Defaults to 0.",
    )
    draining_replicas: int = Field(
        default=0,
        ge=0,
        description="drainingReplicas is the number of terminating pods that still finish requests. Defaults to 0.",
    )
    desired_replicas: int = Field(
        default=0,
        ge=0,
        description="desiredReplicas is the number of replicas that the operator currently maintains. Defaults to 0.",
    )
    current_revision: str | None = Field(
        default=None,
        max_length=63,
        description="currentRevision is the name of the latest revision that has served, to which a rollback returns. "
        "It is unset until a revision has served.",
    )
    update_revision: str | None = Field(
        default=None,
        max_length=63,
        description="updateRevision is the name of the revision of the current spec. It is unset until the operator "
        "has read the spec.",
    )
    selector: str = Field(
        max_length=512,
        description="selector is the label selector of the pods in string form. The scale subresource provides it to "
        "an HPA or KEDA.",
    )
    url: str = Field(max_length=512, description="url is the OpenAI-compatible base URL within the cluster.")
    load: LoadStatus | None = Field(
        default=None,
        description="load is the load of all replicas together. It is unset until the operator has polled the "
        "replicas.",
    )
    model: ModelStatus | None = Field(
        default=None,
        description="model is the result of the model inspection. It is unset until the model was inspected.",
    )
    adapters: Annotated[
        tuple[AdapterStatus, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        max_length=MOST,
        description="adapters are the states of spec.model.adapters. It is empty if there are none.",
    )
    capacity: CapacityStatus | None = Field(
        default=None,
        description="capacity is the measured and the estimated capacity of one replica. It is unset if neither is "
        "known.",
    )
    autoscaling: AutoscalingStatus | None = Field(
        default=None,
        description="autoscaling is the current decision of the built-in autoscaler. It is unset unless "
        "autoscaling.mode is Builtin.",
    )
    failures: tuple[PodFailure, ...] = Field(
        default=(),
        max_length=10,
        description="failures are the current failures of pods, worst first. It is empty if there are none.",
    )
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = Field(
        default=(),
        max_length=16,
        description="conditions are the latest observations of the state: Ready, Available, Progressing, Degraded, "
        "SpecValid, ModelResolved, CacheReady, Scheduled and ScalingActive, and AdaptersReady if there are adapters. "
        "It is empty until the operator has read the spec.",
    )
