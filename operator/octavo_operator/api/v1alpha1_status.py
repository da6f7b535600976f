"""Status of LLMDeployment v1alpha1: what the operator writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import ApiBlock, Time


class Condition(ApiBlock):
    """One aspect of the state, with a reason and a message a person can act on."""

    type: str = Field(max_length=316, description="Aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="One word for programs.")
    message: str = Field(max_length=4096, description="What is the case, and what to do about it.")
    last_transition_time: Time = Field(description="When `status` changed.")
    observed_generation: int = Field(ge=0, description="Generation of the spec this was said of.")


class LoadStatus(ApiBlock):
    """Sums over the replicas, written when they moved and at most every 30 seconds."""

    kv_occupancy: str | None = Field(
        default=None, max_length=8, description="Share of the KV pools that live requests hold."
    )
    running_requests: int = Field(default=0, ge=0, description="Sequences being computed.")
    queued_requests: int = Field(default=0, ge=0, description="Sequences waiting in replicas.")
    held_requests: int = Field(default=0, ge=0, description="Requests held by gateways until a replica can take them.")
    updated_at: Time = Field(description="When this was written.")


class CapacityStatus(ApiBlock):
    """What was measured of a replica."""

    cold_start_seconds: int | None = Field(
        default=None, ge=0, description="From the creation of a pod to its readiness."
    )
    estimated_memory_bytes: int | None = Field(
        default=None, ge=0, description="Memory that a replica is expected to use once all of it is in use."
    )
    estimated_kv_tokens_per_replica: int | None = Field(
        default=None, ge=0, description="Tokens that the KV pool of a replica is expected to hold."
    )
    kv_tokens_per_replica: int | None = Field(
        default=None, ge=0, description="Tokens that the KV pool of a replica holds."
    )


class ModelStatus(ApiBlock):
    """What was found when the model was looked at, before pods were made for it."""

    identity: str = Field(max_length=16, description="Hash over what `spec.model` says of where the model is.")
    resolved_revision: str | None = Field(
        default=None,
        max_length=128,
        description="What every replica gets: the commit, whatever a branch does meanwhile; of a model in a bucket "
        "the hash over names, sizes and ETags of its files.",
    )
    architecture: str | None = Field(default=None, max_length=128, description="Family of the model.")
    parameters: int | None = Field(default=None, ge=0, description="Numbers in its weights.")
    weights_bytes: int | None = Field(default=None, ge=0, description="Memory that the weights take in a replica.")
    kv_bytes_per_token: int | None = Field(
        default=None, ge=0, description="Memory that one token takes in the KV pool."
    )
    context_length: int | None = Field(default=None, ge=0, description="Longest sequence, in tokens.")


class ScalingEvent(ApiBlock):
    """One change of the number of replicas by the autoscaler."""

    time: Time = Field(description="When.")
    from_: int = Field(alias="from", ge=0, description="Replicas before.")
    to: int = Field(ge=0, description="Replicas wanted.")
    reason: str = Field(max_length=128, description="One word for programs.")
    inputs: str = Field(max_length=1024, description="The numbers the decision was made from.")


class AutoscalingStatus(ApiBlock):
    """What the built-in autoscaler thinks."""

    reason: str = Field(max_length=128, description="One word for programs.")
    message: str = Field(max_length=1024, description="The decision in words.")
    recommended: int = Field(ge=0, description="Replicas it wants.")
    last_scale_time: Time | None = Field(default=None, description="When it last changed the number.")
    history: tuple[ScalingEvent, ...] = Field(
        default=(), max_length=10, description="The newest changes, oldest first."
    )


class PodFailure(ApiBlock):
    """Something that is wrong with a pod, or keeps pods from being created."""

    pod: str | None = Field(
        default=None, max_length=253, description="Name of the pod; absent where no pod can be created."
    )
    container: str | None = Field(default=None, max_length=253, description="Name of the container.")
    reason: str = Field(max_length=128, description="One word for programs.")
    message: str = Field(max_length=1024, description="What was found and what to do.")
    count: int = Field(default=1, ge=0, description="How often.")
    last_time: Time | None = Field(default=None, description="When last.")


class LLMDeploymentStatus(ApiBlock):
    """The observed state, written by the operator."""

    observed_generation: int = Field(ge=0, description="Generation of the spec this status is about.")
    replicas: int = Field(default=0, ge=0, description="Pods that are not terminating.")
    ready_replicas: int = Field(default=0, ge=0, description="Pods that serve.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods of the newest spec.")
    draining_replicas: int = Field(default=0, ge=0, description="Pods that finish their work and go.")
    desired_replicas: int = Field(default=0, ge=0, description="Pods wanted now.")
    current_revision: str | None = Field(
        default=None, max_length=63, description="The newest revision that served: where a rollback leads."
    )
    update_revision: str | None = Field(default=None, max_length=63, description="The revision of the spec.")
    selector: str = Field(max_length=512, description="Label selector of the pods, for HPA and KEDA.")
    url: str = Field(max_length=512, description="OpenAI-compatible base address inside the cluster.")
    load: LoadStatus | None = Field(default=None, description="What the replicas do.")
    model: ModelStatus | None = Field(default=None, description="What was found of the model.")
    capacity: CapacityStatus | None = Field(default=None, description="What was measured of a replica.")
    autoscaling: AutoscalingStatus | None = Field(default=None, description="What the built-in autoscaler thinks.")
    failures: tuple[PodFailure, ...] = Field(
        default=(), max_length=10, description="What is wrong with pods, worst first."
    )
    conditions: Annotated[
        tuple[Condition, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = Field(default=(), max_length=16, description="Ready, Available, Progressing, Degraded and their parts.")
