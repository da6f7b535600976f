"""LLMDeployments in a real API server, and the operator that reconciles them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api.resource import Key
from octavo_operator.builders.common import Installation
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import LLMDEPLOYMENTS
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile.pods import Pod
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.view import Load, Scaling

Json = dict[str, Any]


class Sampled:
    """A sampler that knows what the test says."""

    def __init__(self) -> None:
        self.now: Load | None = None
        self.decision: Scaling | None = None
        self.tracked: tuple[Pod, ...] = ()

    def load(self, key: Key) -> Load | None:
        return self.now

    def scaling(self, key: Key) -> Scaling | None:
        return self.decision

    def track(self, owner: object, pods: tuple[Pod, ...], replicas: int) -> None:
        self.tracked = pods

    def forget(self, key: Key) -> None:
        self.tracked = ()


@pytest.fixture
def sampled() -> Sampled:
    return Sampled()


@pytest.fixture
def make_reconciler(sampled: Sampled) -> Callable[[KubeClient], Reconciler]:
    def make(client: KubeClient) -> Reconciler:
        installation = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")
        return Reconciler(client, installation, sampled, Metrics(), time.time, "test")

    return make


@pytest.fixture
def llmd(namespace: str) -> Callable[..., Json]:
    """Body of an LLMDeployment."""

    def make(name: str = "tiny", **spec: Any) -> Json:
        model = {"model": {"uri": "oci://registry.local/models/tiny:1"}, "resources": {"gpu": {"count": 0}}}
        return {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": LLMDEPLOYMENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**model, **spec},
        }

    return make
