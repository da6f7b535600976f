"""LLMDeployment v1alpha1: with the status, the one source of the CRD, its chart copy and its reference page.

Every string, list, map and number is bounded; rules that need more than one field are CEL rules on the block they
are about (`RULES`). Fields that the engine can choose better for the device it meets have no default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api import cron
from octavo_operator.api.base import OBJECT_NAME, ApiBlock, Bytes, LabelValue, ObjectName, Quantity, Rule, unset
from octavo_operator.api.model_uri import PATTERN, REVISION, uri_rules
from octavo_operator.api.v1alpha1_adapters import MOST, AdapterSpec
from octavo_operator.api.v1alpha1_cache import Cache
from octavo_operator.api.v1alpha1_engine import EngineSpec
from octavo_operator.api.v1alpha1_routing import Routing
from octavo_operator.api.v1alpha1_scheduling import Scheduling
from octavo_protocol.engine_settings import GPU_PROFILES, PROFILES, BatchProfile, ProfileName

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"


class SecretRef(ApiBlock):
    """SecretRef names a Secret in the same namespace."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME, description="name is the name of the Secret.")


class ConfigMapKeyRef(ApiBlock):
    """ConfigMapKeyRef selects a key of a ConfigMap in the same namespace."""

    name: ObjectName = Field(description="name is the name of the ConfigMap.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._A-Za-z0-9]+$",
        description="key is the key to select. It must exist.",
    )


class ModelSpec(ApiBlock):
    """ModelSpec defines the model that is served, and its names."""

    RULES = (
        *uri_rules("model"),
        Rule(
            rule="!has(self.adapters) || self.adapters.all(a, !a.uri.startsWith('pvc://') || "
            "(self.uri.startsWith('pvc://') && a.uri.split('/')[2] == self.uri.split('/')[2]))",
            message="model.adapters[].uri with scheme pvc must name the claim of model.uri: pods that run cannot "
            "mount another volume; put the adapter on that claim, or use hf, s3 or gs",
            found="'model.adapters: one with scheme pvc is on another claim than model.uri, which is ' + self.uri "
            "+ ': pods that run cannot mount another volume; put it on the claim of the model, or use hf, s3 or gs'",
        ),
        Rule(
            rule="!has(self.adapters) || self.adapters.all(a, "
            "(!has(self.servedName) || a.name != self.servedName) && !(has(self.aliases) && a.name in self.aliases))",
            message="model.adapters[].name must differ from model.servedName and model.aliases: a request names "
            "either the model or an adapter",
        ),
    )

    uri: str = Field(
        max_length=512,
        pattern=PATTERN,
        description="uri is the location of the model's weights. `hf://ORGANISATION/REPOSITORY` is a repository of "
        "the Hugging Face hub. `s3://BUCKET/PREFIX` and `gs://BUCKET/PREFIX` are object storage; PREFIX is a folder, "
        "or one file that ends in `.gguf`. Models of these three schemes are downloaded before the server starts. "
        "`oci://REFERENCE` is an image whose files are the model, mounted as an image volume. `pvc://CLAIM/PATH` is a "
        "folder or file of a PersistentVolumeClaim, mounted read-only.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=REVISION,
        description="revision is the revision of the model to download. For `hf://` it is a branch, tag or commit. "
        "For `s3://` and `gs://` it is a hash as status.model.resolvedRevision shows it. If unset, it is the branch "
        "main of a hub repository, or the files that the bucket has. A branch or tag is resolved to a commit once, "
        "and all replicas load that commit. Not allowed for other schemes.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=MODEL_NAME,
        description="servedName is the model name that clients send in requests. Defaults to the name of the "
        "LLMDeployment.",
    )
    aliases: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128, pattern=MODEL_NAME)], ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(
        default=(),
        max_length=8,
        description="aliases are additional model names that clients can send in requests. If empty, only servedName "
        "is accepted.",
    )
    adapters: Annotated[
        tuple[AdapterSpec, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        max_length=MOST,
        description="adapters is a list of LoRA adapters, which all replicas load without a restart. Only the first "
        "adapter and the removal of the last one replace the pods, unless engine.adapters.maxLoaded is set. If empty, "
        "there are none.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="credentialsSecretRef is a reference to the Secret with the credentials of the sources of the "
        "model and its adapters. Only the containers that download receive them. For `hf://` the key is `token`. For "
        "`s3://` the keys are `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, optionally, `AWS_SESSION_TOKEN`. For "
        "`gs://` the key is `GOOGLE_SERVICE_ACCOUNT_KEY`, a JSON document. Keys of other schemes than the model's are "
        "for adapters and optional. If unset, the sources are accessed without credentials.",
    )
    chat_template_config_map_ref: ConfigMapKeyRef | None = Field(
        default=None,
        description="chatTemplateConfigMapRef selects a chat template in Jinja, which replaces the model's own. A "
        "replica reads it once, when it starts; a change of the ConfigMap has no effect on replicas that run. If "
        "unset, the model's own template is used.",
    )


class Gpu(ApiBlock):
    """Gpu defines the GPUs of one replica."""

    RULES = (
        Rule(
            rule="!has(self.product) || (has(self.count) && self.count > 0)",
            message="resources.gpu.product requires a GPU: set resources.gpu.count to 1, or leave product out",
            found="'resources.gpu.product is ' + self.product + ' and resources.gpu.count is 0: set count to 1, or "
            "leave product out'",
        ),
        Rule(
            rule="!has(self.minMemory) || (has(self.count) && self.count > 0)",
            message="resources.gpu.minMemory requires a GPU: set resources.gpu.count to 1, or leave minMemory out",
            found="'resources.gpu.minMemory is ' + string(self.minMemory) + ' and resources.gpu.count is 0: set count "
            "to 1, or leave minMemory out'",
        ),
        Rule(
            rule="!has(self.minMemory) || !quantity(string(self.minMemory)).isLessThan(quantity('1Gi'))",
            message="resources.gpu.minMemory must be at least 1Gi; check the unit, as in 80G",
            found="'resources.gpu.minMemory is ' + string(self.minMemory) + ': it must be at least 1Gi; check the "
            "unit, as in 80G'",
        ),
    )

    count: int = Field(
        default=0,
        ge=0,
        le=16,
        description="count is the number of GPUs of one replica, all on one node. If 0, the model runs on the CPU. If "
        "more than 1, engine.parallelism.tensor must have the same value. Must be between 0 and 16. Defaults to 0.",
    )
    resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
        description="resourceName is the name of the extended resource that each replica requests. Defaults to "
        "`nvidia.com/gpu`.",
    )
    product: LabelValue | None = Field(
        default=None,
        min_length=1,
        description="product is the value that the node label `nvidia.com/gpu.product` must have, for example "
        "`NVIDIA-H100-80GB-HBM3`. The command `kubectl get nodes -L nvidia.com/gpu.product` lists the values. "
        "Requires count of at least 1. If unset, GPUs of every product are accepted.",
    )
    min_memory: Bytes | None = Field(
        default=None,
        description="minMemory is the minimum memory of each GPU, a quantity of at least 1Gi. It is compared with the "
        "node label `nvidia.com/gpu.memory`. A card reports slightly less than its nominal size in Gi: for a card of "
        "80 GB, use 80G and not 80Gi. Requires count of at least 1. If unset, GPUs of every size are accepted.",
    )


class Claim(ApiBlock):
    """Claim references one ResourceClaim of the pods, by name or through a template."""

    RULES = (
        Rule(
            rule="has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            message="resources.claims[] must have exactly one of resourceClaimName and resourceClaimTemplateName",
            found="'resources.claims: ' + self.name + ' has ' + (has(self.resourceClaimName) ? 'both' : 'none') + ' "
            "of resourceClaimName and resourceClaimTemplateName: set exactly one of them'",
        ),
    )

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="name is the name of this claim within the pod. It must be unique, and a DNS label.",
    )
    resource_claim_name: ObjectName | None = Field(
        default=None,
        description="resourceClaimName is the name of a ResourceClaim in the same namespace. All replicas share it. "
        "Exactly one of resourceClaimName and resourceClaimTemplateName must be set.",
    )
    resource_claim_template_name: ObjectName | None = Field(
        default=None,
        description="resourceClaimTemplateName is the name of a ResourceClaimTemplate in the same namespace. Each "
        "replica gets its own ResourceClaim from it. Exactly one of resourceClaimName and resourceClaimTemplateName "
        "must be set.",
    )


class Resources(ApiBlock):
    """Resources define the compute resources of one replica."""

    RULES = (
        Rule(
            rule="!has(self.cpu) || (quantity(string(self.cpu)).isGreaterThan(quantity('0')) && "
            "!quantity(string(self.cpu)).isGreaterThan(quantity('1024')))",
            message="resources.cpu must be more than 0 and at most 1024 CPUs",
            found="'resources.cpu is ' + string(self.cpu) + ': it must be more than 0 and at most 1024 CPUs'",
        ),
        Rule(
            rule="!has(self.memory) || !quantity(string(self.memory)).isLessThan(quantity('64Mi'))",
            message="resources.memory must be at least 64Mi; check the unit, as in 16Gi",
            found="'resources.memory is ' + string(self.memory) + ': it must be at least 64Mi; check the unit, as in "
            "16Gi'",
        ),
    )

    profile: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="profile is the name of a resource profile of the installation (chart value resourceProfiles). It "
        "provides cpu, memory, runtimeClassName and priorityClassName where the LLMDeployment leaves them unset. Its "
        "nodeSelector and tolerations are merged with those of scheduling. If unset, no profile is applied.",
    )
    gpu: Gpu = Field(
        default=Gpu(), description="gpu defines the GPUs of one replica. If unset, the model runs on the CPU."
    )
    cpu: Quantity = Field(
        default="4",
        json_schema_extra=unset,
        description="cpu is the CPU request of one replica, a quantity above 0 and up to 1024. There is no CPU limit, "
        "because throttling would stall decoding. Defaults to the value of the profile, or to 4 without one.",
    )
    memory: Quantity = Field(
        default="16Gi",
        json_schema_extra=unset,
        description="memory is the memory request and limit of one replica, a quantity of at least 64Mi. Defaults to "
        "the value of the profile, or to 16Gi without one.",
    )
    claims: Annotated[
        tuple[Claim, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        max_length=8,
        description="claims are the ResourceClaims of each replica, for devices with dynamic resource allocation. If "
        "empty, there are none.",
    )


class Targets(ApiBlock):
    """Targets define the load at which the autoscaler adds replicas."""

    kv_occupancy_percent: int = Field(
        default=85,
        ge=10,
        le=95,
        description="kvOccupancyPercent is the target share of the KV cache pools that live requests hold, in "
        "percent. The autoscaler adds replicas when the share would exceed it. Must be between 10 and 95. Defaults to "
        "85.",
    )
    queued_requests_per_replica: int = Field(
        default=4,
        ge=1,
        le=10_000,
        description="queuedRequestsPerReplica is the target number of waiting requests per replica. The autoscaler "
        "adds replicas when more requests wait. Must be between 1 and 10000. Defaults to 4.",
    )
    ttft_milliseconds: int | None = Field(
        default=None,
        ge=10,
        le=3_600_000,
        description="ttftMilliseconds is the target time to first token (TTFT), in milliseconds. If set, the "
        "autoscaler adds replicas for prompts that would still wait when a new replica becomes ready. If unset, "
        "waiting prompts count by their number only. Must be between 10 and 3600000.",
    )
    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="tpotMilliseconds is the target time per output token (TPOT), in milliseconds. If set, a replica "
        "counts as full when its steps would take longer. If unset, a replica counts as full when its batch or its KV "
        "cache pool is full. Must be between 1 and 3600000.",
    )


class ScaleUp(ApiBlock):
    """ScaleUp limits how fast the autoscaler adds replicas."""

    stabilization_seconds: int = Field(
        default=0,
        ge=0,
        le=3600,
        description="stabilizationSeconds is the number of seconds for which demand must last before replicas are "
        "added. If 0, replicas are added immediately. Must be between 0 and 3600. Defaults to 0.",
    )
    max_replicas_per_step: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="maxReplicasPerStep is the maximum number of replicas that are added within periodSeconds. Must "
        "be between 1 and 1000. Defaults to 4.",
    )
    period_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="periodSeconds is the length of the window for maxReplicasPerStep, in seconds. Must be between 1 "
        "and 3600. Defaults to 30.",
    )


class ScaleDown(ApiBlock):
    """ScaleDown limits how fast the autoscaler removes replicas."""

    stabilization_seconds: int = Field(
        default=120,
        ge=0,
        le=86400,
        description="stabilizationSeconds is the length in seconds of the window whose highest demand decides whether "
        "replicas are removed. The window is at least as long as replicas were measured to take to start. If 0, only "
        "that measured time counts. Must be between 0 and 86400. Defaults to 120.",
    )
    max_replicas_per_step: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="maxReplicasPerStep is the maximum number of replicas that are removed within periodSeconds. Must "
        "be between 1 and 1000. Defaults to 1.",
    )
    period_seconds: int = Field(
        default=60,
        ge=1,
        le=3600,
        description="periodSeconds is the length of the window for maxReplicasPerStep, in seconds. Must be between 1 "
        "and 3600. Defaults to 60.",
    )


class Schedule(ApiBlock):
    """Schedule is a recurring window of time with a higher lower limit for the number of replicas."""

    RULES = (
        Rule(
            # An unknown zone fails the evaluation, and the answer names it.
            rule="self.timeZone != 'Local' && timestamp('2026-01-01T12:00:00Z').getFullYear(self.timeZone) == 2026",
            message="autoscaling.schedules[].timeZone must be a time zone of the IANA database, such as Europe/Berlin",
        ),
    )

    start: str = Field(
        max_length=100,
        pattern=cron.PATTERN,
        description="start is the time at which the window opens, in the format of crontab(5). Its fields are minute, "
        "hour, day of the month, month and day of the week. For example, `0 8 * * MON-FRI` is 08:00 on weekdays. A "
        "range can wrap around, as in `FRI-MON`.",
    )
    duration_minutes: int = Field(
        ge=1,
        le=10_080,
        description="durationMinutes is the length of the window, in minutes. Must be between 1 and 10080 (one week).",
    )
    time_zone: str = Field(
        default="Etc/UTC",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][-A-Za-z0-9_+]*(/[A-Za-z0-9][-A-Za-z0-9_+]*)*$",
        description="timeZone is the name of the time zone of start in the IANA database, for example "
        "`Europe/Berlin`. The name `Local` is not allowed. Defaults to `Etc/UTC`.",
    )
    min_replicas: int = Field(
        ge=1,
        le=1000,
        description="minReplicas is the lower limit for the number of replicas while the window is open. It must be "
        "above autoscaling.minReplicas, and cannot exceed autoscaling.maxReplicas. Must be between 1 and 1000.",
    )


class Autoscaling(ApiBlock):
    """Autoscaling defines how the number of replicas is determined."""

    RULES = (
        Rule(
            rule="self.minReplicas <= self.maxReplicas",
            message="autoscaling.minReplicas must not exceed autoscaling.maxReplicas",
        ),
        Rule(
            rule="!has(self.idleSecondsToZero) || (self.mode == 'Builtin' && self.minReplicas == 0)",
            message="autoscaling.idleSecondsToZero requires autoscaling.mode Builtin and autoscaling.minReplicas 0; "
            "set both, or leave idleSecondsToZero out",
        ),
        Rule(
            rule="!has(self.schedules) || size(self.schedules) == 0 || self.mode == 'Builtin'",
            message="autoscaling.schedules require autoscaling.mode Builtin; the other modes use spec.replicas",
            found="'autoscaling.schedules require autoscaling.mode Builtin, and the mode is ' + self.mode + ', which "
            "uses spec.replicas'",
        ),
        Rule(
            rule="!has(self.schedules) || "
            "self.schedules.all(s, self.minReplicas < s.minReplicas && s.minReplicas <= self.maxReplicas)",
            message="autoscaling.schedules[].minReplicas must be more than autoscaling.minReplicas, and must not "
            "exceed autoscaling.maxReplicas",
        ),
        Rule(
            rule="!has(self.fallbackReplicas) || (self.mode == 'Builtin' && "
            "self.minReplicas <= self.fallbackReplicas && self.fallbackReplicas <= self.maxReplicas)",
            message="autoscaling.fallbackReplicas requires autoscaling.mode Builtin, and must be between minReplicas "
            "and maxReplicas",
        ),
    )

    mode: Literal["Manual", "Builtin", "External"] = Field(
        default="Manual",
        description="mode is the source of the number of replicas. Manual uses spec.replicas. Builtin enables "
        "Octavo's autoscaler, which chooses a number between minReplicas and maxReplicas. External uses "
        "spec.replicas, which an HPA or KEDA writes through the scale subresource. Defaults to Manual.",
    )
    min_replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="minReplicas is the lower limit for the number of replicas in mode Builtin. If 0, the autoscaler "
        "can scale to zero. Must be between 0 and 1000. Defaults to 1.",
    )
    max_replicas: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="maxReplicas is the upper limit for the number of replicas in mode Builtin. It cannot be less "
        "than minReplicas. Must be between 1 and 1000. Defaults to 1.",
    )
    targets: Targets = Field(
        default=Targets(), description="targets define the load at which the autoscaler adds replicas in mode Builtin."
    )
    scale_up: ScaleUp = Field(
        default=ScaleUp(), description="scaleUp limits how fast the autoscaler adds replicas in mode Builtin."
    )
    scale_down: ScaleDown = Field(
        default=ScaleDown(), description="scaleDown limits how fast the autoscaler removes replicas in mode Builtin."
    )
    idle_seconds_to_zero: int | None = Field(
        default=None,
        ge=10,
        le=604800,
        description="idleSecondsToZero is the number of seconds without a request after which the last replica is "
        "removed. The gateway holds the next request while a replica starts. Requires mode Builtin and minReplicas 0. "
        "Must be between 10 and 604800. Defaults to 900.",
    )
    schedules: tuple[Schedule, ...] = Field(
        default=(),
        max_length=16,
        description="schedules are recurring windows of time in which more than minReplicas are kept. If several "
        "windows are open, the highest limit applies. Requires mode Builtin. If empty, minReplicas applies at all "
        "times.",
    )
    fallback_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="fallbackReplicas is the lower limit for the number of replicas while more than half of the ready "
        "replicas send no load report. Requires mode Builtin. It cannot be less than minReplicas or more than "
        "maxReplicas. Must be between 1 and 1000. If unset, the current number of replicas is kept.",
    )


class CanaryStep(ApiBlock):
    """CanaryStep is one step of a canary rollout: a share of the requests, and its duration."""

    percent: int = Field(
        ge=1,
        le=100,
        description="percent is the share of requests that the new revision receives in this step, in percent. It "
        "must be greater than in the previous step. Must be between 1 and 100.",
    )
    hold_seconds: int = Field(
        default=300,
        ge=0,
        le=86400,
        description="holdSeconds is the minimum duration of the step before the new revision is compared with the old "
        "one, in seconds. If 0, the comparison starts as soon as there are enough requests. Must be between 0 and "
        "86400. Defaults to 300.",
    )


class Canary(ApiBlock):
    """Canary defines the steps of a canary rollout, and the limits beyond which it fails."""

    RULES = (
        Rule(
            rule="self.steps.map(s, s.percent).isSorted() && "
            "self.steps.all(s, self.steps.filter(o, o.percent == s.percent).size() == 1)",
            message="rollout.canary.steps must be in ascending order: each percent must be greater than the previous "
            "one",
        ),
    )

    steps: tuple[CanaryStep, ...] = Field(
        min_length=1,
        max_length=10,
        description="steps are the shares of requests that the new revision receives, in ascending order. After the "
        "last step, all replicas are updated.",
    )
    max_error_percent: int = Field(
        default=2,
        ge=0,
        le=100,
        description="maxErrorPercent is the maximum difference between the error rates of the new and the old "
        "revision, in percentage points. Errors are responses with status 5xx and broken streams. If 0, any higher "
        "error rate fails the canary. Must be between 0 and 100. Defaults to 2.",
    )
    max_ttft_regression_percent: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="maxTtftRegressionPercent is the maximum increase of the median time to first token from the old "
        "to the new revision, in percent. If 0, any increase fails the canary. Must be between 0 and 10000. Defaults "
        "to 50.",
    )


class Rollout(ApiBlock):
    """Rollout defines how existing pods are replaced after a change."""

    RULES = (
        Rule(
            rule="self.strategy == 'Rolling' || (!has(self.maxSurge) && !has(self.maxUnavailable))",
            message="rollout.maxSurge and rollout.maxUnavailable require rollout.strategy Rolling; set it, or leave "
            "them out",
        ),
        Rule(
            rule="self.strategy != 'Rolling' || (has(self.maxSurge) ? self.maxSurge : 1) + "
            "(has(self.maxUnavailable) ? self.maxUnavailable : 0) > 0",
            message="rollout.maxSurge and rollout.maxUnavailable must not both be 0; set one of them to at least 1",
        ),
        Rule(
            rule="self.strategy != 'Canary' || has(self.canary)",
            message="rollout.strategy Canary requires rollout.canary.steps",
        ),
    )

    strategy: Literal["Auto", "Rolling", "Recreate", "Canary"] = Field(
        default="Auto",
        description="strategy is the method by which existing pods are replaced with new ones. Auto adds one pod at a "
        "time; if it stays unschedulable, replicas are replaced in place with one fewer meanwhile. Rolling follows "
        "maxSurge and maxUnavailable. Recreate deletes all existing pods before new ones are created. Canary sends a "
        "growing share of the requests to new pods, and updates all replicas after the last step succeeds. Defaults "
        "to Auto.",
    )
    max_surge: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="maxSurge is the maximum number of pods above the desired number during a rollout. Requires "
        "strategy Rolling. Cannot be 0 if maxUnavailable is 0. Must be between 0 and 1000. Defaults to 1.",
    )
    max_unavailable: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="maxUnavailable is the maximum number of replicas that can be unavailable during a rollout. "
        "Requires strategy Rolling. Cannot be 0 if maxSurge is 0. Must be between 0 and 1000. Defaults to 0.",
    )
    surge_schedule_timeout_seconds: int = Field(
        default=120,
        ge=5,
        le=86400,
        description="surgeScheduleTimeoutSeconds is the number of seconds that an additional pod can stay "
        "unschedulable before replicas are replaced in place. It applies to strategies Auto and Canary. Must be "
        "between 5 and 86400. Defaults to 120.",
    )
    progress_deadline_seconds: int | None = Field(
        default=None,
        ge=10,
        le=86400,
        description="progressDeadlineSeconds is the maximum time without a new ready pod before a rollout is "
        "considered failed, in seconds. Must be between 10 and 86400. Defaults to probes.startupTimeoutSeconds + 60.",
    )
    auto_rollback: bool = Field(
        default=True,
        description="autoRollback indicates whether a failed rollout returns to the last revision that served. The "
        "failed revision is not tried again until the spec changes. If false, the failed rollout stays as it is. "
        "Defaults to true.",
    )
    revision_history_limit: int = Field(
        default=5,
        ge=0,
        le=50,
        description="revisionHistoryLimit is the number of old revisions to retain as ControllerRevisions, in "
        "addition to those in use. If 0, only revisions in use are retained. Must be between 0 and 50. Defaults to 5.",
    )
    canary: Canary | None = Field(
        default=None,
        description="canary defines the steps and limits of a canary rollout. It must be set if strategy is Canary.",
    )


class Drain(ApiBlock):
    """Drain defines how a terminating replica finishes its requests."""

    timeout_seconds: int = Field(
        default=120,
        ge=0,
        le=3600,
        description="timeoutSeconds is the maximum time for running requests to finish, in seconds, counted from the "
        "end of propagationSeconds. Requests that still run then are aborted. If 0, they are aborted immediately. "
        "Must be between 0 and 3600. Defaults to 120.",
    )
    propagation_seconds: int = Field(
        default=5,
        ge=0,
        le=60,
        description="propagationSeconds is the time for which a terminating replica still accepts requests, in "
        "seconds. Clients of the Service observe the removal of the endpoint during that time. If 0, the replica "
        "drains immediately. Must be between 0 and 60. Defaults to 5.",
    )


class Probes(ApiBlock):
    """Probes define when a container of a replica is restarted."""

    startup_timeout_seconds: int = Field(
        default=1800,
        ge=30,
        le=14400,
        description="startupTimeoutSeconds is the maximum time for the server to load the weights and generate a "
        "first token, in seconds. After that time, its container is restarted. Must be between 30 and 14400. Defaults "
        "to 1800.",
    )
    liveness_stall_seconds: int = Field(
        default=30,
        ge=10,
        le=3600,
        description="livenessStallSeconds is the maximum time without a finished engine step while there are "
        "requests, in seconds. After that time, the container is restarted. Must be between 10 and 3600. Defaults to "
        "30.",
    )


class Availability(ApiBlock):
    """Availability defines the objects that protect the pods."""

    pod_disruption_budget: bool = Field(
        default=True,
        description="podDisruptionBudget indicates whether a PodDisruptionBudget is created. It allows the eviction "
        "of one replica at a time, and does not block the eviction of unhealthy pods. If false, evictions are not "
        "limited. Defaults to true.",
    )
    network_policy: bool = Field(
        default=True,
        description="networkPolicy indicates whether a NetworkPolicy is created. It allows the gateway and pods of "
        "the same namespace to reach the API port. It allows the operator, the gateway and the installation's metrics "
        "peers to reach the admin port. Egress is denied, except to DNS and the sources of models and adapters for "
        "pods that download. If false, traffic is not restricted. Defaults to true.",
    )


# As the API server sees it: the operator's default is not in the object, and only the operator knows a profile's.
_MEMORY = "(has(self.resources.memory) ? string(self.resources.memory) : has(self.resources.profile) ? '' : '16Gi')"


def _by_profile(profiles: Mapping[ProfileName, BatchProfile]) -> str:
    profile = "self.engine.profile"
    rows = {name: sizes.max_running_requests for name, sizes in profiles.items()}
    return (
        f"(!has({profile}) || {profile} == 'balanced' ? {rows['balanced']} : "
        f"{profile} == 'latency' ? {rows['latency']} : {rows['throughput']})"
    )


_ROWS = (
    "(has(self.engine.scheduler.maxRunningRequests) ? self.engine.scheduler.maxRunningRequests : "
    f"self.resources.gpu.count > 0 ? {_by_profile(GPU_PROFILES)} : {_by_profile(PROFILES)})"
)
_BATCHED = "self.engine.scheduler.maxBatchedTokens"
_TENSOR, _COUNT = "self.engine.parallelism.tensor", "self.resources.gpu.count"


class Spec(ApiBlock):
    """Spec is the desired state of the LLMDeployment."""

    RULES = (
        Rule(
            rule="!has(self.model.credentialsSecretRef) || self.model.uri.matches('^(hf|s3|gs)://') || "
            "(has(self.model.adapters) && size(self.model.adapters) > 0) || "
            "(has(self.engine.adapters.maxLoaded) && self.engine.adapters.maxLoaded > 0)",
            message="model.credentialsSecretRef is only allowed for hf://, s3:// and gs:// models, and with adapters; "
            "for a registry, use imagePullSecrets of the ServiceAccount that has the resource's name",
        ),
        Rule(
            rule="self.cache.type in ['Auto', 'ImageVolume'] || !self.model.uri.startsWith('oci://')",
            message="cache.type must be Auto or ImageVolume for an oci:// model, which is mounted as an image "
            "volume; leave cache.type out",
        ),
        Rule(
            rule="self.cache.type == 'Auto' || !self.model.uri.startsWith('pvc://')",
            message="cache.type must be Auto for a pvc:// model, which is on a volume already; leave cache.type out",
        ),
        Rule(
            rule="self.cache.type != 'ImageVolume' || self.model.uri.startsWith('oci://')",
            message="cache.type ImageVolume requires an oci:// model",
        ),
        Rule(
            rule="self.autoscaling.mode != 'Builtin' || oldSelf.autoscaling.mode != 'Builtin' || "
            "self.replicas == oldSelf.replicas",
            message="replicas must not be changed while autoscaling.mode is Builtin; change autoscaling.minReplicas "
            "or autoscaling.maxReplicas, or set autoscaling.mode to Manual or External",
        ),
        Rule(
            rule=f"!has({_BATCHED}) || {_BATCHED} >= {_ROWS}",
            message="scheduler.maxBatchedTokens must not be less than scheduler.maxRunningRequests (or the "
            "profile's): each running sequence takes one token of a step",
            found="'scheduler.maxBatchedTokens is %d and %d sequences can run: each takes one token of a step; raise "
            f"maxBatchedTokens or lower maxRunningRequests'.format([{_BATCHED}, {_ROWS}])",
        ),
        Rule(
            rule="self.resources.gpu.count > 0 || !has(self.engine.kv.dtype) || self.engine.kv.dtype == 'auto'",
            message="engine.kv.dtype requires a GPU: set resources.gpu.count to 1, or leave dtype out",
            found="'engine.kv.dtype is ' + self.engine.kv.dtype + ', which requires a GPU: set resources.gpu.count "
            "to 1, or leave dtype out'",
        ),
        Rule(
            rule="self.resources.gpu.count == 0 || !has(self.engine.speculation.model)",
            message="engine.speculation.model requires a CPU: on a GPU, speculation.method can be ngram; set it, or "
            "set resources.gpu.count to 0",
        ),
        Rule(
            rule="!has(self.engine.adapters.maxLoaded) || self.engine.adapters.maxLoaded > 0 || "
            "!has(self.model.adapters) || size(self.model.adapters) == 0",
            message="model.adapters requires engine.adapters.maxLoaded of at least 1; leave maxLoaded out, or raise it",
        ),
        Rule(
            rule="self.resources.gpu.count == 0 || !has(self.engine.kv.memoryPercent)",
            message="engine.kv.memoryPercent requires a CPU: on a GPU the KV cache pool takes all memory that is left; "
            "leave it out, or set engine.kv.memory",
        ),
        Rule(
            rule="self.resources.gpu.count > 0 || !has(self.engine.quantization) || self.engine.quantization != 'fp8'",
            message="engine.quantization fp8 requires a GPU: set resources.gpu.count to 1, set int8, or leave "
            "quantization out",
        ),
        Rule(
            rule="self.resources.gpu.count == 0 || !has(self.engine.quantization) || "
            "self.engine.quantization != 'int8'",
            message="engine.quantization int8 requires a CPU: on a GPU set fp8, or leave quantization out",
        ),
        Rule(
            rule="!has(self.engine.quantization) || self.engine.quantization != 'int8' || self.engine.dtype == 'auto'",
            message="engine.quantization int8 requires engine.dtype auto: leave dtype out, or leave quantization out",
        ),
        Rule(
            rule=f"{_TENSOR} == 1 || {_COUNT} == {_TENSOR}",
            message="resources.gpu.count must equal engine.parallelism.tensor, the number of GPUs that share the model",
            found="'engine.parallelism.tensor is %d and resources.gpu.count is %d: set count to %d, or leave tensor "
            f"out'.format([{_TENSOR}, {_COUNT}, {_TENSOR}])",
        ),
        Rule(
            # A replica that holds a GPU and leaves it idle is worse than a refusal.
            rule=f"{_TENSOR} > 1 || {_COUNT} <= 1",
            message="resources.gpu.count above 1 requires the same value of engine.parallelism.tensor: otherwise one "
            "GPU computes and the others are idle",
            found="'resources.gpu.count is %d and engine.parallelism.tensor is 1: one GPU would compute and the "
            "others would be idle; set tensor to %d, or count to 1 and replicas to the number of GPUs'"
            f".format([{_COUNT}, {_COUNT}])",
        ),
        Rule(
            rule=f"{_TENSOR} == 1 || !has(self.engine.scheduler.preemption) || "
            "self.engine.scheduler.preemption != 'swap'",
            message="scheduler.preemption swap requires engine.parallelism.tensor 1: it supports one GPU; use "
            "recompute, or leave preemption out",
        ),
        Rule(
            # With a GPU the pool is in the GPU's memory.
            rule=f"self.resources.gpu.count > 0 || !has(self.engine.kv.memory) || {_MEMORY} == '' || "
            f"quantity(string(self.engine.kv.memory)).isLessThan(quantity({_MEMORY}))",
            message="engine.kv.memory must be less than resources.memory: the weights need memory, too",
            found=f"'engine.kv.memory is ' + string(self.engine.kv.memory) + ' and resources.memory is ' + {_MEMORY} + "
            "': the pool must be smaller, because the weights need memory, too'",
        ),
        Rule(
            rule="self.rollout.strategy != 'Canary' || self.autoscaling.mode != 'Builtin' || "
            "self.autoscaling.maxReplicas > 1",
            message="rollout.strategy Canary requires autoscaling.maxReplicas of at least 2 in mode Builtin: a "
            "canary is an additional replica",
        ),
        Rule(
            rule="!has(self.engine.scheduler.staticWaitMilliseconds) || "
            "self.engine.scheduler.staticWaitMilliseconds < self.probes.livenessStallSeconds * 1000",
            message="scheduler.staticWaitMilliseconds must be less than probes.livenessStallSeconds: a batch that "
            "waits longer would count as a stall",
        ),
    )

    suspend: bool = Field(
        default=False,
        description="suspend indicates whether serving is suspended. If true, no replica runs and no requests are "
        "held, regardless of the other fields. Defaults to false.",
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="replicas is the desired number of replicas in the autoscaling modes Manual and External. In mode "
        "External, it is written through the scale subresource. In mode Builtin, it is not used. If 0, no replica "
        "runs. Must be between 0 and 1000. Defaults to 1.",
    )
    model: ModelSpec = Field(description="model defines the model that is served, and its names.")
    cache: Cache = Field(default=Cache(), description="cache defines where downloaded weights are stored.")
    engine: EngineSpec = Field(default=EngineSpec(), description="engine defines the settings of the inference server.")
    resources: Resources = Field(
        default=Resources(), description="resources define the compute resources of one replica."
    )
    autoscaling: Autoscaling = Field(
        default=Autoscaling(), description="autoscaling defines how the number of replicas is determined."
    )
    routing: Routing = Field(
        default=Routing(), description="routing defines how a gateway selects a replica for a request."
    )
    rollout: Rollout = Field(
        default=Rollout(), description="rollout defines how existing pods are replaced after a change."
    )
    drain: Drain = Field(
        default=Drain(),
        description="drain defines how a terminating replica finishes its requests. The termination grace period of "
        "the pods is propagationSeconds + timeoutSeconds + 15 seconds.",
    )
    probes: Probes = Field(default=Probes(), description="probes define when a container of a replica is restarted.")
    scheduling: Scheduling = Field(
        default=Scheduling(), description="scheduling defines the nodes on which the pods can run."
    )
    availability: Availability = Field(
        default=Availability(), description="availability defines the objects that protect the pods."
    )


ROOT_RULES = (
    Rule(
        rule="self.metadata.name.size() <= 45",
        message="metadata.name must be 45 characters or fewer: the names of Services and pods are derived from it",
    ),
    Rule(
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="metadata.name must start with a letter and contain only lower-case letters, digits and '-': a "
        "Service gets the same name",
    ),
    Rule(
        rule="!has(self.spec) || has(self.spec.model.servedName) || !has(self.spec.model.adapters) || "
        "self.spec.model.adapters.all(a, a.name != self.metadata.name)",
        message="model.adapters[].name must differ from metadata.name, which is the name of the model without "
        "model.servedName",
    ),
)
