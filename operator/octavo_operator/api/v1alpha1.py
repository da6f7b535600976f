"""LLMDeployment v1alpha1: with the status, the one source of the CRD, its chart copy and its reference page.

Every string, list, map and number is bounded; rules that need more than one field are CEL rules on the block they
are about (`RULES`). Fields that the engine can choose better for the device it meets have no default here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api import cron
from octavo_operator.api.base import OBJECT_NAME, ApiBlock, Bytes, LabelValue, ObjectName, Quantity, Rule, unset
from octavo_operator.api.v1alpha1_cache import Cache
from octavo_operator.api.v1alpha1_engine import EngineSpec
from octavo_operator.api.v1alpha1_routing import Routing
from octavo_operator.api.v1alpha1_scheduling import Scheduling

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"


class SecretRef(ApiBlock):
    """A Secret of the same namespace."""

    name: str = Field(min_length=1, max_length=253, pattern=OBJECT_NAME, description="Name of the Secret.")


class ModelSpec(ApiBlock):
    """What is served, and under which names."""

    RULES = (
        Rule(
            rule="!self.uri.startsWith('hf://') || self.uri.matches('^hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$')",
            message="a hub model is written hf://ORGANISATION/REPOSITORY (the revision goes into model.revision)",
        ),
        Rule(
            rule="!self.uri.startsWith('pvc://') || "
            "(self.uri.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?$') && !self.uri.contains('/..'))",
            message="a model on a volume is written pvc://CLAIM/PATH with PATH inside the volume",
        ),
        Rule(
            rule="!self.uri.matches('^(s3|gs)://') || "
            "(self.uri.matches('^(s3|gs)://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._=+-]+)*/?$') && "
            "!self.uri.matches('/[.][.]?(/|$)'))",
            message="a model in a bucket is written s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, with letters, digits and "
            "any of . _ = + - in PREFIX",
        ),
        Rule(
            rule="!has(self.revision) || self.uri.matches('^(hf|s3|gs)://')",
            message="model.revision is for hf://, s3:// and gs:// models; an oci:// reference carries its own tag or "
            "digest",
        ),
        Rule(
            rule="!has(self.revision) || !self.uri.matches('^(s3|gs)://') || self.revision.matches('^[0-9a-f]{40}$')",
            message="model.revision of a model in a bucket is one that status.model.resolvedRevision has shown: 40 "
            "hex digits over names, sizes and ETags",
        ),
        Rule(
            rule="!has(self.credentialsSecretRef) || self.uri.matches('^(hf|s3|gs)://')",
            message="model.credentialsSecretRef is for hf://, s3:// and gs:// models; registries use imagePullSecrets "
            "of the service account that has the resource's name",
        ),
    )

    uri: str = Field(
        max_length=512,
        pattern=r"^(hf|s3|gs|oci|pvc)://[^\s]+$",
        description="Where the weights are: `oci://REFERENCE` (an image whose files are the model, mounted as an image "
        "volume), `hf://ORGANISATION/REPOSITORY`, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX` (downloaded before the "
        "server starts; PREFIX is a folder, or one file that ends in `.gguf`) or `pvc://CLAIM/PATH` (a folder or file "
        "of a PersistentVolumeClaim, mounted read-only).",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9._/-]+$",
        description="Branch, tag or commit of a hub model, `main` when not given; of a model in a bucket the hash that "
        "`status.model.resolvedRevision` shows, what is there when not given.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=MODEL_NAME,
        description="Model name that clients send; the resource's name when not given.",
    )
    aliases: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128, pattern=MODEL_NAME)], ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(default=(), max_length=8, description="Further model names that clients may send.")
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="Secret with the credentials; only the container that downloads gets them. Keys: `token` for "
        "`hf://`; `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, where there is one, `AWS_SESSION_TOKEN` for "
        "`s3://`; `GOOGLE_SERVICE_ACCOUNT_KEY` (JSON) for `gs://`. Without a Secret the source is asked anonymously.",
    )


class Gpu(ApiBlock):
    """GPUs of one replica."""

    RULES = (
        Rule(
            rule="!has(self.product) || (has(self.count) && self.count > 0)",
            message="resources.gpu.product needs a GPU: set resources.gpu.count to 1, or leave product out",
            found="'resources.gpu.product is ' + self.product + ' and resources.gpu.count is 0: set count to 1, or "
            "leave product out'",
        ),
        Rule(
            rule="!has(self.minMemory) || (has(self.count) && self.count > 0)",
            message="resources.gpu.minMemory needs a GPU: set resources.gpu.count to 1, or leave minMemory out",
            found="'resources.gpu.minMemory is ' + string(self.minMemory) + ' and resources.gpu.count is 0: set count "
            "to 1, or leave minMemory out'",
        ),
        Rule(
            rule="!has(self.minMemory) || !quantity(string(self.minMemory)).isLessThan(quantity('1Gi'))",
            message="resources.gpu.minMemory must be at least 1Gi; a unit may be missing, as in 80G",
            found="'resources.gpu.minMemory is ' + string(self.minMemory) + ', below 1Gi; a unit may be missing, as in "
            "80G'",
        ),
    )

    count: int = Field(
        default=0,
        ge=0,
        le=16,
        description="GPUs of one replica, all on one node: 0 runs on the CPU; more than 1 share the model, and "
        "`engine.parallelism.tensor` must be as many.",
    )
    resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
        description="Name of the extended resource.",
    )
    product: LabelValue | None = Field(
        default=None,
        min_length=1,
        description="Only nodes whose label `nvidia.com/gpu.product` is exactly this, such as "
        "`NVIDIA-H100-80GB-HBM3`; `kubectl get nodes -L nvidia.com/gpu.product` shows them.",
    )
    min_memory: Bytes | None = Field(
        default=None,
        description="Only nodes whose GPUs have at least this much memory by their label `nvidia.com/gpu.memory`. "
        "Cards have a little less than their name says in Gi: for one of 80 GB write `80G`, not `80Gi`.",
    )


class Claim(ApiBlock):
    """A resource claim of the pods (dynamic resource allocation)."""

    RULES = (
        Rule(
            rule="has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            message="a claim needs one of resourceClaimName and resourceClaimTemplateName",
            found="'resources.claims: ' + self.name + ' has ' + (has(self.resourceClaimName) ? 'both' : 'none') + "
            "' of resourceClaimName and resourceClaimTemplateName: it needs one of them'",
        ),
    )

    name: str = Field(
        min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Name in the pod."
    )
    resource_claim_name: ObjectName | None = Field(default=None, description="A ResourceClaim that all replicas share.")
    resource_claim_template_name: ObjectName | None = Field(
        default=None, description="A ResourceClaimTemplate, from which each replica gets a claim of its own."
    )


class Resources(ApiBlock):
    """What one replica asks of its node."""

    RULES = (
        Rule(
            rule="!has(self.cpu) || (quantity(string(self.cpu)).isGreaterThan(quantity('0')) && "
            "!quantity(string(self.cpu)).isGreaterThan(quantity('1024')))",
            message="resources.cpu must be more than 0 and at most 1024 CPUs",
            found="'resources.cpu is ' + string(self.cpu) + ': it must be more than 0 and at most 1024 CPUs'",
        ),
        Rule(
            rule="!has(self.memory) || !quantity(string(self.memory)).isLessThan(quantity('64Mi'))",
            message="resources.memory must be at least 64Mi; a unit may be missing, as in 16Gi",
            found="'resources.memory is ' + string(self.memory) + ', below 64Mi; a unit may be missing, as in 16Gi'",
        ),
    )

    profile: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="A profile of the installation (the chart's `resourceProfiles`): cpu, memory, nodeSelector, "
        "tolerations, runtimeClassName and priorityClassName for what is not given here.",
    )
    gpu: Gpu = Field(default=Gpu(), description="GPUs of one replica.")
    cpu: Quantity = Field(
        default="4",
        json_schema_extra=unset,
        description="CPUs requested; the profile's, or 4, when not given. No limit is set, because throttling stalls "
        "decoding.",
    )
    memory: Quantity = Field(
        default="16Gi",
        json_schema_extra=unset,
        description="Memory requested, and the limit; the profile's, or 16Gi, when not given.",
    )
    claims: Annotated[
        tuple[Claim, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(default=(), max_length=8, description="Resource claims of the pods, such as devices.")


class Targets(ApiBlock):
    """What a well-loaded replica looks like."""

    kv_occupancy_percent: int = Field(
        default=85,
        ge=10,
        le=95,
        description="Share of the KV pool that live requests may hold before a replica is added.",
    )
    queued_requests_per_replica: int = Field(
        default=4, ge=1, le=10_000, description="Waiting requests per replica before a replica is added."
    )
    ttft_milliseconds: int | None = Field(
        default=None,
        ge=10,
        le=3_600_000,
        description="Time to the first token that most requests are to keep. With it, prompts that would still wait "
        "when a new replica is ready ask for replicas; without, only their number does.",
    )
    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time per output token that most requests are to keep. With it a replica counts as full when its "
        "steps would take longer; without, when its rows or its KV pool are.",
    )


class ScaleUp(ApiBlock):
    """How fast replicas are added."""

    stabilization_seconds: int = Field(
        default=0, ge=0, le=3600, description="Demand must hold this long before replicas are added."
    )
    max_replicas_per_step: int = Field(default=4, ge=1, le=1000, description="Replicas added in one period.")
    period_seconds: int = Field(default=30, ge=1, le=3600, description="Length of a period.")


class ScaleDown(ApiBlock):
    """How slowly replicas are taken away."""

    stabilization_seconds: int = Field(
        default=120,
        ge=0,
        le=86400,
        description="The highest demand of this window, or of the time that replicas were seen to take to start if "
        "that is longer, decides whether replicas may go.",
    )
    max_replicas_per_step: int = Field(default=1, ge=1, le=1000, description="Replicas taken away in one period.")
    period_seconds: int = Field(default=60, ge=1, le=3600, description="Length of a period.")


class Schedule(ApiBlock):
    """A time that recurs, and for how long more replicas are kept from then on."""

    RULES = (
        Rule(
            # An unknown zone fails the evaluation, and the answer names it.
            rule="self.timeZone != 'Local' && timestamp('2026-01-01T12:00:00Z').getFullYear(self.timeZone) == 2026",
            message="schedules[].timeZone must be the name of a time zone, such as Europe/Berlin",
        ),
    )

    start: str = Field(
        max_length=100,
        pattern=cron.PATTERN,
        description="When it opens, as crontab(5) writes times: minute, hour, day of the month, month, day of the week "
        "(`0 8 * * MON-FRI`).",
    )
    duration_minutes: int = Field(ge=1, le=10_080, description="How long it stays open.")
    time_zone: str = Field(
        default="Etc/UTC",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z][-A-Za-z0-9_+]*(/[A-Za-z0-9][-A-Za-z0-9_+]*)*$",
        description="Time zone of `start`, such as `Europe/Berlin`.",
    )
    min_replicas: int = Field(ge=1, le=1000, description="Fewest replicas while it is open.")


class Autoscaling(ApiBlock):
    """Who decides the number of replicas."""

    RULES = (
        Rule(rule="self.minReplicas <= self.maxReplicas", message="minReplicas must not exceed maxReplicas"),
        Rule(
            rule="!has(self.idleSecondsToZero) || (self.mode == 'Builtin' && self.minReplicas == 0)",
            message="idleSecondsToZero needs mode Builtin and minReplicas 0",
        ),
        Rule(
            rule="!has(self.schedules) || size(self.schedules) == 0 || self.mode == 'Builtin'",
            message="autoscaling.schedules need mode Builtin: in the other modes spec.replicas decides",
            found="'autoscaling.schedules need mode Builtin, found ' + self.mode + ': there spec.replicas decides'",
        ),
        Rule(
            rule="!has(self.schedules) || "
            "self.schedules.all(s, self.minReplicas < s.minReplicas && s.minReplicas <= self.maxReplicas)",
            message="autoscaling.schedules[].minReplicas must be more than minReplicas, or it changes nothing, and not "
            "more than maxReplicas",
        ),
        Rule(
            rule="!has(self.fallbackReplicas) || (self.mode == 'Builtin' && "
            "self.minReplicas <= self.fallbackReplicas && self.fallbackReplicas <= self.maxReplicas)",
            message="autoscaling.fallbackReplicas needs mode Builtin, and must be between minReplicas and maxReplicas",
        ),
    )

    mode: Literal["Manual", "Builtin", "External"] = Field(
        default="Manual",
        description="`Manual`: `spec.replicas`. `Builtin`: Octavo's autoscaler, between minReplicas and maxReplicas. "
        "`External`: `spec.replicas`, written through `/scale` by an HPA or KEDA.",
    )
    min_replicas: int = Field(
        default=1, ge=0, le=1000, description="Fewest replicas in mode Builtin; 0 allows scale to zero."
    )
    max_replicas: int = Field(default=1, ge=1, le=1000, description="Most replicas in mode Builtin.")
    targets: Targets = Field(default=Targets(), description="Targets of mode Builtin.")
    scale_up: ScaleUp = Field(default=ScaleUp(), description="How fast replicas are added.")
    scale_down: ScaleDown = Field(default=ScaleDown(), description="How slowly replicas are taken away.")
    idle_seconds_to_zero: int | None = Field(
        default=None,
        ge=10,
        le=604800,
        description="Without any request for this long the last replica goes; 900 when minReplicas is 0 and none is "
        "given. The gateway holds the next request while a replica starts.",
    )
    schedules: tuple[Schedule, ...] = Field(
        default=(), max_length=16, description="Times at which more than minReplicas are kept; the largest counts."
    )
    fallback_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Fewest replicas while more than half of the ready ones give no load report; as many as there are "
        "when not given.",
    )


class CanaryStep(ApiBlock):
    """One share of the requests, held for a while."""

    percent: int = Field(ge=1, le=100, description="Share of the requests that the new revision gets.")
    hold_seconds: int = Field(
        default=300, ge=0, le=86400, description="Time at this share before the new revision is judged."
    )


class Canary(ApiBlock):
    """A new revision beside the old one, given more requests as long as it answers as well."""

    RULES = (
        Rule(
            rule="self.steps.map(s, s.percent).isSorted() && "
            "self.steps.all(s, self.steps.filter(o, o.percent == s.percent).size() == 1)",
            message="canary.steps must grow: each percent above the one before",
        ),
    )

    steps: tuple[CanaryStep, ...] = Field(
        min_length=1, max_length=10, description="Shares of the requests, in order; after the last all replicas follow."
    )
    max_error_percent: int = Field(
        default=2,
        ge=0,
        le=100,
        description="Share of answers with errors (5xx, or broken off) that the new revision may have above that of "
        "the old one, in percentage points.",
    )
    max_ttft_regression_percent: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="How much longer the median time to the first token of the new revision may be.",
    )


class Rollout(ApiBlock):
    """How a change that concerns pods reaches them."""

    RULES = (
        Rule(
            rule="self.strategy == 'Rolling' || (!has(self.maxSurge) && !has(self.maxUnavailable))",
            message="rollout.maxSurge and maxUnavailable are for strategy Rolling; the other strategies know theirs",
        ),
        Rule(
            rule="self.strategy != 'Rolling' || (has(self.maxSurge) ? self.maxSurge : 1) + "
            "(has(self.maxUnavailable) ? self.maxUnavailable : 0) > 0",
            message="rollout.maxSurge and maxUnavailable cannot both be 0",
        ),
        Rule(
            rule="self.strategy != 'Canary' || has(self.canary)",
            message="rollout.strategy Canary needs rollout.canary.steps",
        ),
    )

    strategy: Literal["Auto", "Rolling", "Recreate", "Canary"] = Field(
        default="Auto",
        description="`Auto`: one more pod at a time, and where that one finds no room, one replica fewer meanwhile. "
        "`Rolling`: as maxSurge and maxUnavailable say. `Recreate`: all old pods go first. `Canary`: a few pods beside "
        "the old ones get a share of the requests through the gateway, and all follow when they answer as well.",
    )
    max_surge: int | None = Field(
        default=None, ge=0, le=1000, description="Strategy Rolling: pods above the replicas; 1 when not given."
    )
    max_unavailable: int | None = Field(
        default=None, ge=0, le=1000, description="Strategy Rolling: replicas that may be missing; 0 when not given."
    )
    surge_schedule_timeout_seconds: int = Field(
        default=120,
        ge=5,
        le=86400,
        description="Strategies Auto and Canary: how long an additional pod may wait for room on a node.",
    )
    progress_deadline_seconds: int | None = Field(
        default=None,
        ge=10,
        le=86400,
        description="Longest time without a new ready pod before the rollout counts as failed; "
        "`probes.startupTimeoutSeconds` + 60 when not given.",
    )
    auto_rollback: bool = Field(
        default=True,
        description="Go back to the last revision that served when a new one fails; it is not tried again until the "
        "spec changes.",
    )
    revision_history_limit: int = Field(
        default=5, ge=0, le=50, description="Revisions kept beside those in use, as ControllerRevisions."
    )
    canary: Canary | None = Field(default=None, description="Steps and limits of strategy Canary.")


class Drain(ApiBlock):
    """How a replica that must go finishes its work. Grace period of the pod = propagation + timeout + 15 seconds."""

    timeout_seconds: int = Field(
        default=120, ge=0, le=3600, description="Longest time running requests may take to finish."
    )
    propagation_seconds: int = Field(
        default=5,
        ge=0,
        le=60,
        description="Time a terminating replica still takes new requests, so that every client of its Service has "
        "learned that it goes.",
    )


class Probes(ApiBlock):
    """When a replica counts as failed."""

    startup_timeout_seconds: int = Field(
        default=1800, ge=30, le=14400, description="Longest start (load of weights and first token) before a restart."
    )
    liveness_stall_seconds: int = Field(
        default=60,
        ge=10,
        le=3600,
        description="Restart when requests are there and no engine step ended for this long.",
    )


class Availability(ApiBlock):
    """Protection of the pods."""

    pod_disruption_budget: bool = Field(
        default=True,
        description="Let evictions take one replica at a time; unhealthy replicas never block a node drain.",
    )
    network_policy: bool = Field(
        default=True,
        description="Let only the gateway and pods of the same namespace reach the API, only operator and gateway the "
        "admin port, and the server reach nothing (models that pods download: DNS and the source).",
    )


# As the API server sees it: the operator's default is not in the object, and only the operator knows a profile's.
_MEMORY = "(has(self.resources.memory) ? string(self.resources.memory) : has(self.resources.profile) ? '' : '16Gi')"


def _by_profile(latency: int, balanced: int, throughput: int) -> str:
    profile = "self.engine.profile"
    return (
        f"(!has({profile}) || {profile} == 'balanced' ? {balanced} : {profile} == 'latency' ? {latency} : {throughput})"
    )


_ROWS = (
    "(has(self.engine.scheduler.maxRunningRequests) ? self.engine.scheduler.maxRunningRequests : "
    f"self.resources.gpu.count > 0 ? {_by_profile(32, 256, 512)} : {_by_profile(16, 64, 256)})"
)
_BATCHED = "self.engine.scheduler.maxBatchedTokens"
_TENSOR, _COUNT = "self.engine.parallelism.tensor", "self.resources.gpu.count"


class Spec(ApiBlock):
    """The wanted state of one served model."""

    RULES = (
        Rule(
            rule="self.cache.type in ['Auto', 'ImageVolume'] || !self.model.uri.startsWith('oci://')",
            message="an oci:// model is mounted as an image volume: leave cache.type out",
        ),
        Rule(
            rule="self.cache.type == 'Auto' || !self.model.uri.startsWith('pvc://')",
            message="a pvc:// model is on its volume already: leave cache.type out",
        ),
        Rule(
            rule="self.cache.type != 'ImageVolume' || self.model.uri.startsWith('oci://')",
            message="cache.type ImageVolume needs an oci:// model",
        ),
        Rule(
            rule="self.autoscaling.mode != 'Builtin' || oldSelf.autoscaling.mode != 'Builtin' || "
            "self.replicas == oldSelf.replicas",
            message="replicas is not used while autoscaling.mode is Builtin; change autoscaling.minReplicas or "
            "maxReplicas, or set autoscaling.mode to Manual or External",
        ),
        Rule(
            rule="self.resources.gpu.count > 0 || !has(self.engine.kv.blockSize) || self.engine.kv.blockSize != 16",
            message="engine.kv.blockSize is 16: a CPU reads 32 keys at a time; use 32, 64 or 128, or leave it out",
        ),
        Rule(
            rule=f"!has({_BATCHED}) || {_BATCHED} >= {_ROWS}",
            message="scheduler.maxBatchedTokens must not be less than scheduler.maxRunningRequests (or the profile's): "
            "every running sequence needs one token in a step",
            found="'scheduler.maxBatchedTokens is %d and %d sequences may run: each needs a token in a step; raise "
            f"maxBatchedTokens or lower maxRunningRequests'.format([{_BATCHED}, {_ROWS}])",
        ),
        Rule(
            rule="self.resources.gpu.count > 0 || !has(self.engine.kv.dtype) || self.engine.kv.dtype == 'auto'",
            message="engine.kv.dtype needs a GPU: set resources.gpu.count to 1, or leave dtype out",
            found="'engine.kv.dtype is ' + self.engine.kv.dtype + ': only GPUs store KV so; set resources.gpu.count to "
            "1, or leave it out'",
        ),
        Rule(
            rule="self.resources.gpu.count > 0 || !has(self.engine.quantization) || self.engine.quantization == 'auto'",
            message="engine.quantization needs a GPU: set resources.gpu.count to 1, or leave quantization out",
            found="'engine.quantization is ' + self.engine.quantization + ': only GPUs compute so; set "
            "resources.gpu.count to 1, or leave it out'",
        ),
        Rule(
            rule=f"{_TENSOR} == 1 || {_COUNT} == {_TENSOR}",
            message="resources.gpu.count must be engine.parallelism.tensor: so many GPUs share the model",
            found="'engine.parallelism.tensor is %d and resources.gpu.count is %d: set count to %d, or leave tensor "
            f"out'.format([{_TENSOR}, {_COUNT}, {_TENSOR}])",
        ),
        Rule(
            # A replica that holds a GPU and leaves it idle is worse than a refusal.
            rule=f"{_TENSOR} > 1 || {_COUNT} <= 1",
            message="resources.gpu.count above 1 needs engine.parallelism.tensor: without it one GPU computes",
            found="'resources.gpu.count is %d and engine.parallelism.tensor is 1: one GPU would compute and the others "
            f"idle; set tensor to %d, or count to 1 and replicas to the number of GPUs'.format([{_COUNT}, {_COUNT}])",
        ),
        Rule(
            rule=f"{_TENSOR} == 1 || !has(self.engine.scheduler.preemption) || "
            "self.engine.scheduler.preemption != 'swap'",
            message="scheduler.preemption swap needs engine.parallelism.tensor 1: it keeps blocks of one GPU in RAM; "
            "use recompute, or leave preemption out",
        ),
        Rule(
            # With a GPU the pool is in the GPU's memory.
            rule=f"self.resources.gpu.count > 0 || !has(self.engine.kv.memory) || {_MEMORY} == '' || "
            f"quantity(string(self.engine.kv.memory)).isLessThan(quantity({_MEMORY}))",
            message="engine.kv.memory must be less than resources.memory: the weights need room beside it",
            found=f"'engine.kv.memory is ' + string(self.engine.kv.memory) + ' and resources.memory is ' + {_MEMORY} + "
            "': the pool must be smaller, the weights need room beside it'",
        ),
        Rule(
            rule="self.rollout.strategy != 'Canary' || self.autoscaling.mode != 'Builtin' || "
            "self.autoscaling.maxReplicas > 1",
            message="rollout.strategy Canary needs autoscaling.maxReplicas 2 or more in mode Builtin: a canary is a "
            "replica beside the others",
        ),
        Rule(
            rule="!has(self.engine.scheduler.staticWaitMilliseconds) || "
            "self.engine.scheduler.staticWaitMilliseconds < self.probes.livenessStallSeconds * 1000",
            message="scheduler.staticWaitMilliseconds must be less than probes.livenessStallSeconds: a batch that "
            "waits would be taken for a hang",
        ),
    )

    suspend: bool = Field(
        default=False, description="Run no replica and hold no requests, whatever the other fields say."
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Replicas in the modes Manual and External (there written through `/scale`).",
    )
    model: ModelSpec = Field(description="What is served.")
    cache: Cache = Field(default=Cache(), description="Where downloaded weights are kept.")
    engine: EngineSpec = Field(default=EngineSpec(), description="How the inference server runs.")
    resources: Resources = Field(default=Resources(), description="What one replica asks of its node.")
    autoscaling: Autoscaling = Field(default=Autoscaling(), description="Who decides the number of replicas.")
    routing: Routing = Field(default=Routing(), description="Which replica a gateway sends a request to.")
    rollout: Rollout = Field(default=Rollout(), description="How a change that concerns pods reaches them.")
    drain: Drain = Field(default=Drain(), description="How a replica that must go finishes its work.")
    probes: Probes = Field(default=Probes(), description="When a replica counts as failed.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Where pods may run.")
    availability: Availability = Field(default=Availability(), description="Protection of the pods.")


ROOT_RULES = (
    Rule(
        rule="self.metadata.name.size() <= 45",
        message="name must be 45 characters or fewer: the names of services and pods are derived from it",
    ),
    Rule(
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="name must start with a letter and contain only lower-case letters, digits and '-': "
        "a Service gets the same name",
    ),
)
