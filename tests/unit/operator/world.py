"""A cluster in miniature, for the tests of the plan."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.inspection import Inspection
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.plan import Apply, Delete, Observed, Plan, plan
from octavo_operator.resources import adapter_job, adapters
from octavo_operator.resources.common import Installation
from octavo_operator.resources.model_job import job_name
from octavo_operator.rollout.replicas import PodAnnotations
from octavo_operator.status.input import Load, Scaling

Json = dict[str, Any]


class World:
    """A cluster in miniature: applies actions, runs the Deployment's pods, lets time go by."""

    def __init__(self, owner: LLMDeployment, installation: Installation) -> None:
        self.owner, self.installation = owner, installation
        self.children: dict[tuple[str, str], Json] = {}
        self.pods: dict[str, Pod] = {}
        self.costs: dict[str, int] = {}
        self.now = 1_000_000.0
        self.scaling: Scaling | None = None
        self.names: Iterator[int] = count(1)
        # What the Job that looks at the model says in its end; None while it runs.
        self.said: str | None = ""
        # What it said when it failed, and whether its pod is gone.
        self.failed, self.lost_inspection = "", False
        self.claim_events: tuple[Json, ...] = ()
        self.cards: tuple[Card, ...] | None = None
        # What the Jobs that look at adapters say, by the adapter's name: in their end, or when they fail.
        self.adapters: dict[str, str] = {}
        self.load: Load | None = None

    def observed(self) -> Observed:
        return Observed(
            self.children,
            tuple(self.pods.values()),
            self.inspection(),
            claim_events=self.claim_events,
            adapter_inspections=self.adapter_inspections(),
            load=self.load,
            scaling=self.scaling,
            cards=self.cards,
        )

    def plan(self) -> Plan:
        return plan(self.owner, self.installation, self.observed(), self.now)

    def inspection(self) -> Inspection | None:
        job = self.children.get(("Job", job_name(self.owner)))
        if job is None or self.lost_inspection:
            return None
        done = bool(job.get("status"))
        said = (self.said or "") if done else self.failed
        return Inspection(Pod("look", "", "", self.now, loaded=done), said, done=done)

    def adapter_inspections(self) -> dict[str, Inspection]:
        found = {}
        for adapter in self.owner.spec.model.adapters:
            name, said = adapter_job.job_name(self.owner, adapter), self.adapters.get(adapter.name, "")
            if said and ("Job", name) in self.children:
                done = '"failure"' not in said.partition(",")[0]
                found[name] = Inspection(Pod(f"look-{name}", "", "", self.now, loaded=True), said, done=done)
        return found

    def pass_(self, actions: int | None = None) -> Plan:
        """One pass; with `actions`, killed after so many of them and before the status is written."""
        decided = self.plan()
        for action in decided.actions[:actions]:
            self.do(action)
        if actions is None:
            self.owner = replace(self.owner, status=copy.deepcopy(decided.status))
        return decided

    def do(self, action: Apply | Delete | PodAnnotations) -> None:
        if isinstance(action, Apply):
            body = copy.deepcopy(action.body)
            key = (body["kind"], body["metadata"]["name"])
            before = self.children.get(key)
            body["metadata"]["uid"] = before["metadata"]["uid"] if before else f"uid-{next(self.names)}"
            self.children[key] = body
        elif isinstance(action, Delete):
            assert self.children[action.kind, action.name]["metadata"]["uid"] == action.uid
            del self.children[action.kind, action.name]
        elif adapters.ANNOTATION_LIST in action.annotations:
            listed = action.annotations[adapters.ANNOTATION_LIST] or ""
            self.pods[action.pod] = replace(self.pods[action.pod], adapter_list=listed)
        elif action.pod in self.pods:
            drain_requested_at = action.annotations["octavo.dev/draining"]
            self.costs[action.pod] = int(action.annotations["controller.kubernetes.io/pod-deletion-cost"] or 0)
            self.pods[action.pod] = replace(
                self.pods[action.pod], drain_requested_at=self.now if drain_requested_at else None
            )

    def run(self) -> None:
        """What the cluster does by itself: pods follow the Deployment, and become ready."""
        self.now += 1.0
        for (kind, _), body in self.children.items():
            if kind == "Job" and "-model-" in body["metadata"]["name"] and self.said is not None:
                body["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        deployment = self.children.get(("Deployment", self.owner.name))
        if deployment is None:
            self.pods.clear()
            return
        revision = deployment["spec"]["template"]["metadata"]["labels"]["octavo.dev/revision"]
        wanted = deployment["spec"]["replicas"]
        self.pods = {name: replace(pod, ready=True, loaded=True) for name, pod in self.pods.items()}
        for pod in [pod for pod in self.pods.values() if pod.revision != revision]:
            del self.pods[pod.name]
        for pod in sorted(self.pods.values(), key=lambda pod: self.costs.get(pod.name, 0))[
            : max(0, len(self.pods) - wanted)
        ]:
            del self.pods[pod.name]
        template = deployment["spec"]["template"]
        config = next(v["configMap"]["name"] for v in template["spec"]["volumes"] if v["name"] == "config")
        assert ("ConfigMap", config) in self.children, "a pod that mounts missing settings never starts"
        for _ in range(wanted - len(self.pods)):
            name = f"pod-{next(self.names)}"
            self.pods[name] = Pod(name, revision, config, self.now, scheduled=True)

    def settle(self) -> Plan:
        for _ in range(40):
            before = self.owner.status, dict(self.pods)
            decided = self.pass_()
            self.run()
            rested = (decided.status, self.pods) == before and decided.requeue_after is None
            if rested and not decided.actions:
                return decided
        pytest.fail(f"no rest: {decided.actions} {decided.status}")


def condition(plan_: Plan, name: str) -> Json:
    return next(c for c in plan_.status["conditions"] if c["type"] == name)
