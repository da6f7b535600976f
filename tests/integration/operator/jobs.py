"""What a Job controller and a kubelet do to the Jobs of the operator: here nobody else does."""

from __future__ import annotations

import contextlib
from typing import Any

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import ConflictError
from octavo_operator.kube.resources import JOBS, PODS

Json = dict[str, Any]


async def finish_jobs(kube: KubeClient, namespace: str, report: str = "") -> bool:
    """Let the unfinished Jobs of a namespace end well, with this termination message; whether there were any."""
    unfinished = [job for job in await kube.list(JOBS, namespace) if not job.get("status", {}).get("succeeded")]
    for job in unfinished:
        await finish_job(kube, job, report)
    return bool(unfinished)


async def finish_job(kube: KubeClient, job: Json, report: str) -> None:
    """What the Job controller and a kubelet would do."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    template = job["spec"]["template"]
    pod = f"{name}-{job['metadata']['uid'][:5]}"
    labels = template["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name}
    head = {"name": pod, "namespace": namespace, "labels": labels}
    time_ = "2026-01-01T00:00:00Z"
    with contextlib.suppress(ConflictError):
        await kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": template["spec"]})
    ended = {"exitCode": 0, "message": report, "startedAt": time_, "finishedAt": time_}
    container = {
        "name": template["spec"]["containers"][0]["name"],
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
    }
    states = [container | {"state": {"terminated": ended}}]
    await kube.apply_status(PODS, namespace, pod, {"phase": "Succeeded", "containerStatuses": states})
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": time_, "lastProbeTime": time_}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    done = {"succeeded": 1, "startTime": time_, "completionTime": time_, "conditions": conditions}
    await kube.apply_status(JOBS, namespace, name, done)
