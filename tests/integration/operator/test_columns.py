"""What `kubectl get llmd` shows: the API server's own table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import LLMDEPLOYMENTS

Json = dict[str, Any]
Make = Callable[..., Json]


async def table(kube: KubeClient, namespace: str) -> list[Json]:
    """Rows by column, as the API server answers kubectl. `wide` holds the names that `-o wide` adds."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    serialized = await kube._api.param_serialize(
        "GET", LLMDEPLOYMENTS.path(namespace), query_params=[], header_params=accept, auth_settings=["BearerToken"]
    )
    answer = await kube._api.call_api(*serialized)
    found = json.loads(await answer.read())
    columns = found["columnDefinitions"]
    return [
        {
            **{column["name"]: cell for column, cell in zip(columns, row["cells"], strict=True)},
            "wide": [column["name"] for column in columns if column["priority"]],
        }
        for row in found["rows"]
    ]


async def test_one_line_tells_the_state(kube: KubeClient, llmd: Make, namespace: str) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    (new,) = await table(kube, namespace)
    assert (new["Name"], new["Model"], new["Status"]) == ("tiny", "oci://registry.local/models/tiny:1", None)
    now = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "False", "reason": "OOMKilled", "message": "pod tiny-0: raise resources.memory"}
    status = {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 1,
        "desiredReplicas": 2,
        "selector": "a=b",
        "url": "http://gateway/v1",
        "currentRevision": "0123456789",
        "model": {"identity": "0123456789", "format": "gptq int4 g128"},
        "load": {"kvOccupancy": "41%", "queuedRequests": 3, "updatedAt": now},
        "autoscaling": {"reason": "KVOccupancy", "message": "m", "recommended": 2},
        "conditions": [
            {**each, "lastTransitionTime": now, "observedGeneration": 1}
            for each in (ready, {**ready, "type": "AdaptersReady", "reason": "AdapterFailed"})
        ],
    }
    await kube.apply_status(LLMDEPLOYMENTS, namespace, "tiny", status)
    (row,) = await table(kube, namespace)
    shown = ("Status", "Ready", "Desired", "KV", "Queue")
    assert [row[name] for name in shown] == ["OOMKilled", 1, 2, "41%", 3]
    assert row["wide"] == ["Scaling", "Adapters", "Format", "Revision", "URL", "Message"]
    assert [row[name] for name in row["wide"]] == [
        "KVOccupancy", "AdapterFailed", "gptq int4 g128", "0123456789", "http://gateway/v1",
        "pod tiny-0: raise resources.memory"]  # fmt: skip
