"""A Kubernetes node, or only its control plane, from programs built from Go modules, without changes to the host.

Tests put `tools/` on `sys.path` and write::

    from localcluster import control_plane

    with control_plane() as plane:
        ...  # plane.server, plane.kubeconfig, plane.ca, plane.certificate, plane.key
"""

from localcluster.controlplane import ControlPlane, control_plane, shared_control_plane
from localcluster.errors import ClusterError

__all__ = ["ClusterError", "ControlPlane", "control_plane", "shared_control_plane"]
