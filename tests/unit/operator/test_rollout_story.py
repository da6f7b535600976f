"""Whole rollouts in a cluster in miniature, by every strategy, with operators killed on the way.

What serves is kept, what fails goes back, and it comes to rest.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment, parse
from octavo_operator.observe.canary_analysis import AnalysisSample, TrackAnswers
from octavo_operator.observe.pods import Pod, Problem
from octavo_operator.reconcile.plan import Apply, Delete, Observed
from octavo_operator.resources.common import Installation
from octavo_operator.rollout.replicas import PodAnnotations
from octavo_operator.status.input import Load

Json = dict[str, Any]
TICK = 10.0
ROOM = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found"
STEPS = {"steps": [{"percent": 25, "holdSeconds": 10}, {"percent": 60, "holdSeconds": 0}]}
STRATEGIES: dict[str, Json] = {
    "auto": {},
    "surge": {"strategy": "Rolling", "maxSurge": 2},
    "in place": {"strategy": "Rolling", "maxSurge": 0, "maxUnavailable": 1},
    "recreate": {"strategy": "Recreate"},
    "canary": {"strategy": "Canary", "canary": STEPS},
}


class Cluster(World):
    """With a Deployment controller that gives up, a scheduler with so many places, and a gateway that counts."""

    def __init__(self, owner: LLMDeployment, places: int) -> None:
        super().__init__(owner, Installation("s:1", "c:1", "octavo-system"))
        self.places = places
        self.broken: set[str] = set()
        self.erring: set[str] = set()
        self.counted: Counter[tuple[str, bool]] = Counter()
        self.progressed: dict[str, tuple[object, float]] = {}

    def observed(self) -> Observed:
        steps = {step for step, _ in self.counted}
        found = {
            step: AnalysisSample(*(self._answers(step, canary=canary) for canary in (False, True))) for step in steps
        }
        return replace(super().observed(), load=Load(evidence=found))

    def _answers(self, step: str, *, canary: bool) -> TrackAnswers:
        requests = self.counted[step, canary]
        return TrackAnswers(requests, requests // 2 if canary and step.partition("-")[0] in self.erring else 0)

    def do(self, action: Apply | Delete | PodAnnotations) -> None:
        before = copy.deepcopy(self.children)
        super().do(action)
        if isinstance(action, Apply) and action.body["kind"] == "Deployment":
            body = self.children["Deployment", action.body["metadata"]["name"]]
            old = before.get(("Deployment", body["metadata"]["name"]), {"spec": {}, "metadata": {}, "status": {}})
            changed = old["spec"] != body["spec"]
            body["metadata"]["generation"] = old["metadata"].get("generation", 0) + changed
            body["status"] = old["status"]

    def run(self) -> None:
        self.now += TICK
        for (kind, _), body in self.children.items():
            if kind == "Job":
                body["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        deployments = {name: body for (kind, name), body in self.children.items() if kind == "Deployment"}
        for canary, name in ((False, "tiny"), (True, "tiny-canary")):
            if name in deployments:
                self._control(deployments[name], canary=canary)
            else:
                self._drop([pod for pod in self.pods.values() if pod.canary is canary])
        self._schedule()
        self._count()

    def _control(self, deployment: Json, *, canary: bool) -> None:
        spec, revision = deployment["spec"], deployment["metadata"]["labels"]["octavo.dev/revision"]
        self._say(deployment, canary=canary)
        mine = [pod for pod in self.pods.values() if pod.canary is canary]
        new, old = ([pod for pod in mine if (pod.revision == revision) is wanted] for wanted in (True, False))
        rolling = spec["strategy"].get("rollingUpdate")
        replicas = spec["replicas"]
        if rolling is None and old:
            self._drop(old)
            return
        surge = rolling["maxSurge"] if rolling and old else 0
        ranked = sorted(new, key=lambda pod: (self.costs.get(pod.name, 0), pod.ready))
        self._drop(ranked[: max(0, len(new) - replicas)])
        for _ in range(min(replicas - len(new), replicas + surge - len(mine))):
            self._create(deployment, canary=canary)
        if old and rolling:
            least = replicas - rolling["maxUnavailable"]
            waiting = sum(not pod.ready for pod in new)
            allowed = max(0, len(mine) - least - waiting)
            down = [pod for pod in old if not pod.ready][:allowed]
            spare = sum(pod.ready for pod in mine) - least
            down += [pod for pod in old if pod.ready][: max(0, min(spare, allowed - len(down)))]
            self._drop(down)

    def _say(self, deployment: Json, *, canary: bool) -> None:
        """The condition Progressing, as the Deployment controller keeps it."""
        name, spec = deployment["metadata"]["name"], deployment["spec"]
        revision = deployment["metadata"]["labels"]["octavo.dev/revision"]
        mine = [pod for pod in self.pods.values() if pod.canary is canary]
        ready = sum(pod.ready and pod.revision == revision for pod in mine)
        done = len(mine) == ready == spec["replicas"]
        reached = (revision, ready, len(mine))
        known, since = self.progressed.get(name, (None, self.now))
        if known != reached:
            since = self.now
        self.progressed[name] = (reached, since)
        late = not done and self.now - since > spec["progressDeadlineSeconds"]
        reason = "ProgressDeadlineExceeded" if late else "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "conditions": [{"type": "Progressing", "status": str(not late), "reason": reason}],
        }

    def _create(self, deployment: Json, *, canary: bool) -> None:
        template = deployment["spec"]["template"]
        config = next(v["configMap"]["name"] for v in template["spec"]["volumes"] if v["name"] == "config")
        assert ("ConfigMap", config) in self.children, "a pod that mounts missing settings never starts"
        name = f"pod-{next(self.names)}"
        revision = template["metadata"]["labels"]["octavo.dev/revision"]
        self.pods[name] = Pod(name, revision, config, self.now, canary=canary)

    def _drop(self, pods: list[Pod]) -> None:
        for pod in pods:
            del self.pods[pod.name]

    def _schedule(self) -> None:
        for name, pod in self.pods.items():
            if pod.scheduled:
                well = pod.revision not in self.broken
                self.pods[name] = replace(pod, ready=well, loaded=True)
            elif sum(other.scheduled for other in self.pods.values()) < self.places:
                self.pods[name] = replace(pod, scheduled=True, problems=())
            else:
                self.pods[name] = replace(pod, problems=(Problem(name, "", "Unschedulable", ROOM),))

    def _count(self) -> None:
        notes = self.children.get(("Service", "tiny"), {"metadata": {}})["metadata"].get("annotations", {})
        if step := notes.get("octavo.dev/canary-step"):
            percent = int(notes["octavo.dev/canary-percent"])
            served = any(pod.ready and pod.canary for pod in self.pods.values())
            self.counted[step, True] += percent * served
            self.counted[step, False] += 100 - percent * served

    def serving(self) -> int:
        return sum(pod.ready for pod in self.pods.values())


def owner(spec: Json, status: Json) -> LLMDeployment:
    limits = {"surgeScheduleTimeoutSeconds": 20, "progressDeadlineSeconds": 60}
    spec = {"model": {"uri": "oci://r/m:1"}, **spec, "rollout": {**limits, **spec.get("rollout", {})}}
    meta = {"name": "tiny", "namespace": "models", "uid": "u1", "generation": 1}
    return parse({"metadata": meta, "spec": spec, "status": status})


def live(cluster: Cluster, replicas: int, strategy: Json, kills: list[int]) -> Json:
    """Ticks until nothing changes any more; at each, what serves and what runs keep to the strategy. Last status."""
    allowed = {"Recreate": replicas, "Rolling": strategy.get("maxUnavailable", 0)}.get(strategy.get("strategy"), 0)
    quiet = 0
    for _ in range(300):
        kill = kills.pop() if kills else None
        decided = cluster.pass_(kill)
        before = dict(cluster.pods)
        cluster.run()
        rolling = cluster.children["Deployment", "tiny"]["spec"]["strategy"].get("rollingUpdate", {})
        fallback = strategy.get("strategy", "Auto") in ("Auto", "Canary") and rolling.get("maxUnavailable") == 1
        assert cluster.serving() >= replicas - (1 if fallback else allowed), "below what must be available"
        surge = strategy.get("maxSurge", 1)
        stable = [pod for pod in cluster.pods.values() if not pod.canary]
        canary = [pod for pod in cluster.pods.values() if pod.canary]
        assert len(stable) <= replicas + surge, "above the surge"
        # One more than the step's while the canary's own pods are replaced.
        assert len(canary) <= -(-60 * replicas // 100) + 1
        assert len({a.body["metadata"]["name"] for a in decided.actions if isinstance(a, Apply)}) <= len(
            decided.actions
        )
        quiet = quiet + 1 if before == cluster.pods and not decided.actions and kill is None else 0
        if quiet > 8:
            return decided.status
    pytest.fail(f"no rest: {decided.actions} {decided.status['conditions']}")


@settings(max_examples=scaled(10), deadline=None)
@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    replicas=st.integers(1, 4),
    room=st.sampled_from([0, 8]),
    fate=st.sampled_from(["good", "broken", "erring"]),
    kills=st.lists(st.integers(0, 4), max_size=12),
)
@example(strategy="auto", replicas=1, room=0, fate="broken", kills=[1, 0, 2])
@example(strategy="canary", replicas=4, room=8, fate="good", kills=[])
@example(strategy="canary", replicas=1, room=8, fate="erring", kills=[1, 1, 1])
def test_a_change_arrives_or_goes_back_and_what_serves_is_kept(
    strategy: str, replicas: int, room: int, fate: str, kills: list[int]
) -> None:
    rollout = STRATEGIES[strategy]
    before = {"replicas": replicas, "rollout": rollout, "engine": {"threads": 1}}
    cluster = Cluster(owner(before, {}), places=replicas + room)
    cluster.settle()
    old = cluster.owner.revision
    cluster.owner = owner({**before, "engine": {"threads": 2}}, cluster.owner.status)
    new = cluster.owner.revision
    getattr(cluster, fate).add(new) if fate != "good" else None
    status = live(cluster, replicas, rollout, kills)
    # Where a surge has no room, Rolling and Canary cannot go on; errors are seen by a canary alone.
    stuck = not room and strategy in ("surge", "canary")
    back = stuck or fate == "broken" or (fate == "erring" and strategy == "canary")
    assert {pod.revision for pod in cluster.pods.values()} == {old if back else new}
    assert len(cluster.pods) == cluster.serving() == replicas
    assert status["currentRevision"] == (old if back else new)
    assert status["updateRevision"] == new
    reason = next(c["reason"] for c in status["conditions"] if c["type"] == "Progressing")
    assert reason == ("RolledBack" if back else "RolloutComplete")
    assert ("Deployment", "tiny-canary") not in cluster.children
    assert ("Service", "tiny-canary") not in cluster.children
    notes = [
        body["metadata"].get("annotations", {}) for (kind, _), body in cluster.children.items() if kind[:4] == "Cont"
    ]
    assert len(notes) == 2
    assert not any("octavo.dev/canary-state" in note for note in notes)


def test_another_spec_amid_a_canary_is_a_new_canary() -> None:
    base = {"replicas": 2, "rollout": STRATEGIES["canary"]}
    cluster = Cluster(owner({**base, "engine": {"threads": 1}}, {}), places=99)
    cluster.settle()
    old = cluster.owner.revision
    cluster.owner = owner({**base, "engine": {"threads": 2}}, cluster.owner.status)
    for _ in range(4):
        cluster.pass_()
        cluster.run()
    assert any(pod.canary for pod in cluster.pods.values())
    cluster.owner = owner({**base, "engine": {"threads": 3}}, cluster.owner.status)
    third = cluster.owner.revision
    cluster.erring.add(third)
    status = live(cluster, 2, STRATEGIES["canary"], [])
    assert {pod.revision for pod in cluster.pods.values()} == {old}
    assert status["updateRevision"] == third


def test_an_upgrade_of_the_operator_restarts_nothing_in_the_middle_of_anything() -> None:
    for name, rollout in STRATEGIES.items():
        before = {"replicas": 3, "rollout": rollout, "engine": {"threads": 1}}
        cluster = Cluster(owner(before, {}), places=99)
        cluster.settle()
        cluster.owner = owner({**before, "engine": {"threads": 2}}, cluster.owner.status)
        for _ in range(4):
            cluster.pass_()
            cluster.run()
        templates = {key: body["spec"]["template"] for key, body in cluster.children.items() if key[0] == "Deployment"}
        cluster.installation = Installation("s:2", "c:2", "octavo-system", "http://gateway")
        cluster.pass_()
        for key, template in templates.items():
            if key in cluster.children:
                assert cluster.children[key]["spec"]["template"] == template, name


def test_what_is_said_of_a_rollback_says_why(make_owner: Any) -> None:
    cluster = Cluster(owner({"engine": {"threads": 1}}, {}), places=9)
    cluster.settle()
    cluster.owner = owner({"engine": {"threads": 2}}, cluster.owner.status)
    cluster.broken.add(cluster.owner.revision)
    live(cluster, 1, {}, [])
    told = condition(cluster.plan(), "Progressing")
    assert "no pod became ready in time" in told["message"]
    assert condition(cluster.plan(), "Ready")["reason"] == "RolledBack"
    assert condition(cluster.plan(), "Available")["status"] == "True"
    assert condition(cluster.plan(), "Degraded")["reason"] == "RolledBack"
