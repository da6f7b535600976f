"""The example resource, as the tests vary it."""

from __future__ import annotations

from typing import Any

import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster

LABEL = "octavo.dev/llmdeployment"


def changed(example: str, name: str, **changes: Any) -> dict[str, Any]:
    """The example under another name, fixed at one replica unless `changes` (merged into spec) say otherwise."""
    resource: dict[str, Any] = yaml.safe_load(example)
    resource["metadata"]["name"] = name
    resource["spec"].pop("autoscaling", None)
    for field, value in changes.items():
        resource["spec"][field] = {**resource["spec"].get(field, {}), **value} if isinstance(value, dict) else value
    return resource


def remove(cluster: Cluster, name: str) -> None:
    """Delete an LLMDeployment, and wait until its pods are gone."""
    cluster.run("delete", RESOURCE, name, "-n", cluster.namespace, "--ignore-not-found", "--wait=false")
    patiently(f"pods of {name} gone", lambda: not cluster.items("pods", f"{LABEL}={name}"), timeout=120)
