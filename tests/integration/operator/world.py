"""One LLMDeployment with a cluster around it: what controllers and kubelets do to it, a clock, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.integration.operator.jobs import finish_jobs

from octavo_common.failpoints import InjectedFaultError
from octavo_operator.api.resource import Key
from octavo_operator.kube.client import MANAGER, STATUS_MANAGER, KubeClient
from octavo_operator.kube.resources import CHILDREN, DEPLOYMENTS, LLMDEPLOYMENTS, PODS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.reconcile.plan import ANNOTATION_APPLIED
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.resources.common import LABEL_REVISION, Installation
from octavo_operator.rollout.replicas import DRAIN_NOTICE_SECONDS
from octavo_operator.status.input import Scaling
from octavo_protocol import names

Json = dict[str, Any]

PERSON = "person"
# Fields that differ between two runs that came to the same.
_OF_THE_RUN = frozenset(
    {
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "time",
        "lastTransitionTime",
        "namespace",
        "updatedAt",
    }
    # The stamp is a hash of a body with its namespace and its owner's uid.
    | {"clusterIP", "clusterIPs", "lastScaleTime", "observedGeneration", ANNOTATION_APPLIED}
)
_STEP_SECONDS = 3.0
_PASSES = 60


class Sampler:
    """What one operator process knows of the load: nothing, until the world's autoscaler has decided once."""

    def __init__(self, world: World) -> None:
        self._world, self._passes = world, 0

    def load(self, key: Key) -> None:
        return None

    def scaling(self, key: Key) -> Scaling | None:
        self._passes += 1
        wanted = self._world.wanted
        return None if wanted is None or self._passes == 1 else Scaling(wanted, "TokensQueued", "")

    def track(self, owner: object, pods: object, replicas: int) -> None: ...

    def forget(self, key: Key) -> None: ...


@dataclass
class World:
    """A namespace with the LLMDeployment `tiny`; `kube` is the administrator, `wanted` the autoscaler's decision.

    `connect` makes the operator's clients; `writes` are those of the operator while it last settled,
    `accepted` how many of them the API server took, `kills` its deaths.
    """

    kube: KubeClient
    connect: Callable[..., Awaitable[KubeClient]]
    body: Json
    wanted: int | None = None
    writes: list[str] = field(default_factory=list)
    kills: int = 0
    accepted: int = 0
    uid: str = "-"
    _now: float = field(default_factory=time.time)
    _pods: int = 0

    @property
    def key(self) -> Key:
        return Key(self.body["metadata"]["namespace"], self.body["metadata"]["name"])

    async def spec(self, **changes: Any) -> None:
        """What a person does: apply a spec."""
        self.body = {**self.body, "spec": {**self.body["spec"], **changes}}
        # As somebody else than the operator: who wrote what is looked at in the end.
        path, query = LLMDEPLOYMENTS.path(*self.key_parts), {"fieldManager": PERSON}
        made = await self.kube._call("PATCH", path, query, self.body, content_type="application/apply-patch+yaml")
        self.uid = made["metadata"]["uid"]

    async def settle(self, *, again: bool = False, **failpoints: str) -> None:
        """Operator and cluster take turns until neither has anything to do. A killed operator is started again.

        With `again`, the successors have the failpoints too.
        """
        self.writes.clear()
        self.kills = self.accepted = 0
        reconciler = await self._start(**failpoints)
        quiet = 0
        for _ in range(_PASSES):
            before = len(self.writes)
            try:
                await reconciler.reconcile(self.key)
            except InjectedFaultError:
                self.kills += 1
                reconciler = await self._start(**(failpoints if again else {}))
                continue
            moved = await self._controllers()
            quiet = 0 if moved or len(self.writes) > before else quiet + 1
            # Twice, and with time in between: what waits for a moment must have had it.
            if quiet == 2:
                return
            self._now += _STEP_SECONDS
        raise AssertionError(f"it never comes to rest: {self.writes[-10:]}")

    async def _start(self, **failpoints: str) -> Reconciler:
        client = await self.connect(**failpoints)
        send = client._send

        async def watched(method: str, path: str, query: Any, body: Any, *rest: Any) -> Json:
            if method != "GET":
                if path == DEPLOYMENTS.path(*self.key_parts):
                    await self._check_replicas(body["spec"]["replicas"])
                self.writes.append(f"{method} {path}")
            answer: Json = await send(method, path, query, body, *rest)
            self.accepted += method != "GET"
            return answer

        client._send = watched  # type: ignore[method-assign]
        installation = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")
        return Reconciler(client, installation, Sampler(self), OperatorMetrics(), lambda: self._now, "test")

    @property
    def key_parts(self) -> tuple[str, str]:
        return self.key.namespace, self.key.name

    async def pods(self) -> list[Json]:
        labels = f"{names.LABEL_NAME}={self.key.name},{names.LABEL_COMPONENT}={names.COMPONENT_SERVER}"
        return await self.kube.list(PODS, self.key.namespace, labels=labels)

    async def _check_replicas(self, replicas: int) -> None:
        """Promise: the number is never below the pods that serve and have not been told in time that they go."""
        serving = 0
        for pod in await self.pods():
            drain_requested_at = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_DRAINING)
            told = drain_requested_at is not None and self._now - _unix(drain_requested_at) >= DRAIN_NOTICE_SECONDS - 1
            serving += _is_ready(pod) and not told
        assert replicas >= serving, f"{replicas} replicas while {serving} pods serve"

    async def _controllers(self) -> bool:
        """The controllers and a kubelet: Jobs end, pods appear, become ready and go, one at a time."""
        if await finish_jobs(self.kube, self.key.namespace):
            return True
        deployment = await self.kube.get(DEPLOYMENTS, *self.key_parts)
        owner = await self.kube.get(LLMDEPLOYMENTS, *self.key_parts)
        if deployment is None or owner is None:
            return False
        template, replicas = deployment["spec"]["template"], deployment["spec"]["replicas"]
        pods = await self.pods()
        new = [pod for pod in pods if _revision(pod) == template["metadata"]["labels"][LABEL_REVISION]]
        old = [pod for pod in pods if pod not in new]
        if len(new) < replicas:
            await self._make_pod(template)
            return True
        for pod in [*old, *sorted(new, key=_cost)[: max(0, len(new) - replicas)]]:
            await self.kube.delete(PODS, self.key.namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
            return True
        return False

    async def _make_pod(self, template: Json) -> None:
        self._pods += 1
        name = f"{self.key.name}-{self._pods}"
        metadata = {"name": name, "namespace": self.key.namespace, "labels": template["metadata"]["labels"]}
        await self.kube.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        )
        times = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        container = {"name": "server", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": state}
        conditions = [{"type": kind, "status": "True", **times} for kind in ("PodScheduled", "Ready")]
        status = {"phase": "Running", "podIP": "10.1.2.3", "conditions": conditions, "containerStatuses": [container]}
        await self.kube.apply_status(PODS, self.key.namespace, name, status)

    async def outcome(self) -> Json:
        """Everything there is, without what differs from run to run. Nobody but the operator wrote any of it."""
        found: Json = {}
        for kind, resource in CHILDREN.items():
            for body in await self.kube.list(resource, self.key.namespace):
                if body["metadata"]["name"] == "kube-root-ca.crt":
                    continue
                if names.LABEL_NAME in body["metadata"].get("labels", {}):
                    one_writer(body, {MANAGER})
                found[f"{kind} {body['metadata']['name']}"] = _timeless(body)
        owner = await self.kube.get(LLMDEPLOYMENTS, *self.key_parts)
        if owner is not None:
            one_writer(owner, {PERSON, STATUS_MANAGER})
            found["owner"] = _timeless(owner)
        text = json.dumps(found).replace(self.key.namespace, "NAMESPACE").replace(self.uid, "UID")
        found = json.loads(text)
        found["pods"] = sorted((_revision(pod), "draining" in str(pod["metadata"])) for pod in await self.pods())
        return found


def one_writer(body: Json, allowed: set[str]) -> None:
    """No field of `body` has two managers, and none another than `allowed`."""
    seen: dict[str, str] = {}
    for entry in body["metadata"].get("managedFields", []):
        assert entry["manager"] in allowed, f"{entry['manager']} wrote to {body['kind']} {body['metadata']['name']}"
        for path in _leaves(entry["fieldsV1"]):
            other = seen.setdefault(path, entry["manager"])
            assert other == entry["manager"], f"{path} has two writers: {other} and {entry['manager']}"


def _leaves(fields: Json, path: str = "") -> list[str]:
    if not fields:
        return [path]
    return [leaf for name, inner in fields.items() for leaf in _leaves(inner, f"{path}/{name}") if name != "."]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        if "managedFields" in value:
            value = {**value, "managedFields": sorted(value["managedFields"], key=lambda entry: str(entry["manager"]))}
        return {name: _timeless(inner) for name, inner in value.items() if name not in _OF_THE_RUN}
    if isinstance(value, list):
        return [_timeless(inner) for inner in value]
    return value


def _revision(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(LABEL_REVISION, ""))


def _cost(pod: Json) -> tuple[int, str]:
    return int(pod["metadata"].get("annotations", {}).get(names.ANNOTATION_DELETION_COST, 0)), pod["metadata"]["name"]


def _is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def difference(one: Json, other: Json) -> str:
    """The names under which two outcomes differ, with both values."""
    changed = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "\n".join(f"{n}:\n  {json.dumps(one.get(n))}\n  {json.dumps(other.get(n))}" for n in changed)
