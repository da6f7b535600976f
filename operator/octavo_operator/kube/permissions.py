"""All permissions of the operator. `python -m octavo_operator.kube.permissions` prints them as RBAC rules."""

from __future__ import annotations

import sys
from typing import Any

import yaml

from octavo_operator.kube import resources as r
from octavo_protocol import names

LEASE_NAME = "octavo-operator"
_READ = ("get", "list", "watch")
_APPLY = ("create", "patch")

# In every watched namespace: (API group, resource, verbs).
SERVED = (
    (names.API_GROUP, names.PLURAL, _READ),
    (names.API_GROUP, f"{names.PLURAL}/status", ("patch",)),
    # The admission plugin OwnerReferencesPermissionEnforcement requires this for blockOwnerDeletion.
    (names.API_GROUP, f"{names.PLURAL}/finalizers", ("update",)),
    (r.DEPLOYMENTS.group, r.DEPLOYMENTS.plural, (*_READ, *_APPLY, "delete")),
    (r.CONTROLLER_REVISIONS.group, r.CONTROLLER_REVISIONS.plural, ("list", "watch", *_APPLY, "delete")),
    (r.SERVICES.group, r.SERVICES.plural, (*_READ, *_APPLY, "delete")),
    (r.SERVICE_ACCOUNTS.group, r.SERVICE_ACCOUNTS.plural, (*_READ, *_APPLY)),
    (r.CONFIG_MAPS.group, r.CONFIG_MAPS.plural, ("list", "watch", *_APPLY, "delete")),
    (r.POD_DISRUPTION_BUDGETS.group, r.POD_DISRUPTION_BUDGETS.plural, (*_READ, *_APPLY, "delete")),
    (r.NETWORK_POLICIES.group, r.NETWORK_POLICIES.plural, (*_READ, *_APPLY, "delete")),
    (r.JOBS.group, r.JOBS.plural, ("list", "watch", *_APPLY, "delete")),
    (r.PERSISTENT_VOLUME_CLAIMS.group, r.PERSISTENT_VOLUME_CLAIMS.plural, (*_READ, *_APPLY)),
    (r.PODS.group, r.PODS.plural, ("list", "watch", "patch")),
    (r.EVENTS.group, r.EVENTS.plural, ("list",)),
    (r.EVENT_RECORDS.group, r.EVENT_RECORDS.plural, ("create",)),
)
# Cluster-wide, unless the operator is limited to namespaces: GPUs of nodes, for sums and explanations.
CLUSTER = ((r.NODES.group, r.NODES.plural, ("list",)),)
# In the operator's own namespace: the pods of the gateways, and the Lease.
OWN = (
    (r.PODS.group, r.PODS.plural, ("list",), ()),
    (r.LEASES.group, r.LEASES.plural, ("create",), ()),
    (r.LEASES.group, r.LEASES.plural, ("get", "update"), (LEASE_NAME,)),
)


def rules() -> dict[str, list[dict[str, Any]]]:
    """RBAC rules by scope: `served` namespaces, the operator's `own` namespace, and the whole `cluster`."""
    served, cluster = (
        [{"apiGroups": [g], "resources": [p], "verbs": list(v)} for g, p, v in some] for some in (SERVED, CLUSTER)
    )
    own = [
        {"apiGroups": [g], "resources": [p], **({"resourceNames": list(n)} if n else {}), "verbs": list(v)}
        for g, p, v, n in OWN
    ]
    return {"served": served, "cluster": cluster, "own": own}


if __name__ == "__main__":
    sys.stdout.write(yaml.safe_dump(rules(), sort_keys=False))
