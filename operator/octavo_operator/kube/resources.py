"""The kinds of objects that the operator reads or writes, and their API paths."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_protocol import names


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """API path of a list (of all namespaces if `namespace` is None), an object or a subresource."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [base, f"namespaces/{namespace}" if namespace else "", self.plural, name or "", subresource or ""]
        return "/".join(part for part in parts if part)


LLMDEPLOYMENTS = Resource(names.API_GROUP, names.API_VERSION, names.PLURAL, names.KIND)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node")
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
JOBS = Resource("batch", "v1", "jobs", "Job")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENT_RECORDS = Resource("events.k8s.io", "v1", "events", "Event")

# Kinds of children, by `kind`.
CHILDREN = {
    resource.kind: resource
    for resource in (
        DEPLOYMENTS,
        CONTROLLER_REVISIONS,
        SERVICES,
        CONFIG_MAPS,
        SERVICE_ACCOUNTS,
        POD_DISRUPTION_BUDGETS,
        NETWORK_POLICIES,
        JOBS,
        PERSISTENT_VOLUME_CLAIMS,
    )
}
