"""Reads the observed state of a pass: always from the API server, never from the event that triggered it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from octavo_operator.api.base import Json
from octavo_operator.api.resource import Key, LLMDeployment
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import CHILDREN, CONFIG_MAPS, CONTROLLER_REVISIONS, EVENTS, JOBS, PODS
from octavo_operator.observe.diagnosis import inspection_refusals
from octavo_operator.observe.inspection import Inspection, is_inspection, observe_inspection
from octavo_operator.observe.pods import Pod, observe_pod, seconds
from octavo_operator.reconcile.plan import ChildId, Observed, child_ids
from octavo_operator.reconcile.version_tracker import version_of
from octavo_operator.resources.adapter_job import COMPONENT
from octavo_operator.resources.adapter_job import CONTAINER as ADAPTER
from octavo_operator.resources.adapter_job import job_name as adapter_job_name
from octavo_operator.resources.cache import KIND
from octavo_operator.resources.common import selector
from octavo_operator.resources.model_job import CONTAINER, job_name
from octavo_protocol import names

# After this long without a started server, a pod's events are read: some problems appear only there.
SILENT_SECONDS = 10.0
# Pods that fail together fail alike.
_PODS_WITH_EVENTS = 3


async def observe(client: KubeClient, owner: LLMDeployment, now: float) -> Observed:
    """Children, pods, and the events about pods with problems."""
    labels = f"{names.LABEL_NAME}={owner.name}"
    managed = f"{labels},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    maps, revisions, jobs, bodies = await asyncio.gather(
        client.list(CONFIG_MAPS, owner.namespace, labels=managed),
        client.list(CONTROLLER_REVISIONS, owner.namespace, labels=managed),
        client.list(JOBS, owner.namespace, labels=managed),
        client.list(PODS, owner.namespace, labels=labels),
    )
    ids = child_ids(owner, revisions)
    fixed = await asyncio.gather(*(client.get(CHILDREN[kind], owner.namespace, name) for kind, name in ids))
    children: dict[ChildId, Json] = {
        child_id: body for child_id, body in zip(ids, fixed, strict=True) if body is not None
    }
    children |= {(body["kind"], body["metadata"]["name"]): body for body in (*maps, *revisions, *jobs)}
    inspections = [body for body in bodies if is_inspection(body)]
    servers = [body for body in bodies if selector(owner).items() <= body["metadata"]["labels"].items()]
    claim = children.get((KIND, owner.cache_claim), {})
    unbound = bool(claim) and claim.get("status", {}).get("phase") != "Bound"
    events = await _events(client, owner, inspections, servers, now)
    job = children.get(("Job", job_name(owner)))
    if (
        job is not None
        and not inspections
        and now - (seconds(job["metadata"]["creationTimestamp"]) or now) >= SILENT_SECONDS
    ):
        # Costly, because the API server scans all events of the namespace: not for a Job that was just created.
        events[job["metadata"]["uid"]] = await _events_about(client, owner, job)
    claim_events = await _events_about(client, owner, claim) if unbound else []
    return replace(_assemble(owner, children, bodies, events), claim_events=claim_events)


async def read_together(
    client: KubeClient, namespace: str | None, owners: Sequence[LLMDeployment]
) -> dict[Key, list[Json]]:
    """Children and pods of many owners, with one list for each kind, from `namespace` or from all."""
    listed = ",".join(sorted({owner.name for owner in owners}))
    labels = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_NAME} in ({listed})"
    kinds = (*CHILDREN.values(), PODS)
    found: dict[Key, list[Json]] = {owner.key: [] for owner in owners}
    for bodies in await asyncio.gather(*(client.list(kind, namespace, labels=labels) for kind in kinds)):
        for body in bodies:
            meta = body["metadata"]
            found.get(Key(meta["namespace"], meta["labels"][names.LABEL_NAME]), []).append(body)
    return found


def from_lists(owner: LLMDeployment, bodies: Sequence[Json]) -> Observed:
    """The observed state of one owner from the lists of `read_together`.

    It lacks foreign objects and events, which `observe` reads; enough to decide whether a pass is needed.
    """
    children = {(body["kind"], body["metadata"]["name"]): body for body in bodies if body["kind"] in CHILDREN}
    return _assemble(owner, children, [body for body in bodies if body["kind"] == PODS.kind], {})


def _assemble(
    owner: LLMDeployment, children: Mapping[ChildId, Json], pods: Sequence[Json], events: Mapping[str, list[Json]]
) -> Observed:
    """The observed state from its parts. `events`: about pods, or a Job without pods, by uid."""
    inspections = [body for body in pods if is_inspection(body)]
    inspection = observe_inspection(
        inspections, owner, job_name(owner), [event for found in events.values() for event in found]
    )
    job = children.get(("Job", job_name(owner)))
    inspection_problems = [] if job is None or inspection is not None else events.get(job["metadata"]["uid"], [])
    return Observed(
        children=children,
        pods=tuple(
            observe_pod(body, owner, events.get(body["metadata"]["uid"], []))
            for body in pods
            if selector(owner).items() <= body["metadata"]["labels"].items()
        ),
        inspection=inspection,
        adapter_inspections=_adapter_inspections(owner, pods),
        inspection_problems=inspection_refusals(inspection_problems),
        versions=_versions((*children.values(), *pods)),
    )


def _adapter_inspections(owner: LLMDeployment, pods: Sequence[Json]) -> dict[str, Inspection]:
    """The inspections of adapters, by the name of their Job."""
    bodies = [body for body in pods if body["metadata"].get("labels", {}).get(names.LABEL_COMPONENT) == COMPONENT]
    jobs = {adapter_job_name(owner, adapter) for adapter in owner.spec.model.adapters} if bodies else set()
    found = {job: observe_inspection(bodies, owner, job, [], ADAPTER) for job in jobs}
    return {job: inspection for job, inspection in found.items() if inspection is not None}


def _versions(bodies: Iterable[Json]) -> dict[str, int]:
    return {body["metadata"]["uid"]: version_of(body["metadata"].get("resourceVersion")) for body in bodies}


async def _events(
    client: KubeClient, owner: LLMDeployment, inspections: list[Json], servers: list[Json], now: float
) -> dict[str, list[Json]]:
    """Events about pods with problems, by pod uid."""
    troubled = [body for body in inspections if _in_trouble(observe_pod(body, owner, [], main=CONTAINER), now)]
    troubled += [body for body in servers if _in_trouble(observe_pod(body, owner, []), now)]
    troubled = troubled[:_PODS_WITH_EVENTS]
    answers = await asyncio.gather(*(_events_about(client, owner, body) for body in troubled))
    return {body["metadata"]["uid"]: found for body, found in zip(troubled, answers, strict=True)}


def _in_trouble(pod: Pod, now: float) -> bool:
    silent = not pod.loaded and now - pod.created >= SILENT_SECONDS
    return pod.active and (silent or bool(pod.problems))


async def _events_about(client: KubeClient, owner: LLMDeployment, body: Json) -> list[Json]:
    """Events about one object, newest first."""
    found = await client.list(EVENTS, owner.namespace, fields=f"involvedObject.uid={body['metadata']['uid']}")
    return sorted(found, key=lambda e: seconds(e.get("lastTimestamp") or e.get("eventTime")) or 0.0, reverse=True)
