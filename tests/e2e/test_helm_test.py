"""`helm test`, as a user runs it after an installation."""

from __future__ import annotations

from demo.cluster import Cluster


def test_helm_test_passes_and_leaves_nothing(cluster: Cluster, system: str) -> None:
    log = cluster.run_helm("test", "octavo", "-n", system, "--logs")
    for line in ("/readyz", "/metrics", "/v1/models", "takes a good LLMDeployment and refuses a bad one"):
        assert line in log
    assert not cluster.items("pods,serviceaccounts,roles,rolebindings", "app.kubernetes.io/component=test", system)
