"""A pod as read from the API server, reduced to what planning needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.times import rfc3339, seconds
from octavo_operator.observe.diagnosis import Problem, pod_problems
from octavo_operator.resources.adapters import ANNOTATION_LIST
from octavo_operator.resources.common import LABEL_REVISION
from octavo_operator.resources.deployment import SERVER, config_name
from octavo_protocol import names

__all__ = ["Pod", "Problem", "observe_pod", "rfc3339", "seconds"]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the deployment. Times are Unix seconds.

    `loaded`: the server container has started, so the weights are loaded. `drain_requested_at`: when it was chosen to
    be removed, None if it was not. `adapter_list`: the hash of the list of adapters that its object names.
    """

    name: str
    revision: str
    config: str
    created: float
    ip: str = ""
    ready: bool = False
    loaded: bool = False
    terminating: bool = False
    finished: bool = False
    scheduled: bool = False
    canary: bool = False
    restarts: int = 0
    drain_requested_at: float | None = None
    adapter_list: str = ""
    problems: tuple[Problem, ...] = field(default=())

    @property
    def active(self) -> bool:
        """True if it counts as a replica: not terminating, not finished."""
        return not self.terminating and not self.finished


def observe_pod(body: Json, owner: LLMDeployment, events: Sequence[Json], main: str = SERVER) -> Pod:
    """The pod from an API object; `events`: those about it; `main`: its main container."""
    meta, status = body["metadata"], body.get("status", {})
    annotations = meta.get("annotations", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    containers = status.get("containerStatuses", [])
    server: Json = next((c for c in containers if c["name"] == main), {})
    running = server.get("state", {}).get("running")
    ready = conditions.get("Ready", {}).get("status") == "True"
    return Pod(
        name=meta["name"],
        revision=meta.get("labels", {}).get(LABEL_REVISION, ""),
        config=config_name(body),
        created=seconds(meta["creationTimestamp"]) or 0.0,
        ip=status.get("podIP", ""),
        ready=ready,
        loaded=bool(running or server.get("restartCount") or server.get("lastState")),
        terminating="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        scheduled=conditions.get("PodScheduled", {}).get("status") == "True",
        canary=meta.get("labels", {}).get(names.LABEL_TRACK) == names.TRACK_CANARY,
        restarts=server.get("restartCount", 0),
        drain_requested_at=seconds(annotations.get(names.ANNOTATION_DRAINING)),
        adapter_list=annotations.get(ANNOTATION_LIST, ""),
        problems=() if ready else pod_problems(body, owner, events),
    )
