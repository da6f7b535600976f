"""The Pod Security Standard `restricted`, checked from its text, and what this project asks of pods beside it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
# By default a volume is what the standard does not name: an image volume holds files that nobody can change.
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "image",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def containers(pod: Json) -> list[Json]:
    return [one for kind in ("initContainers", "containers", "ephemeralContainers") for one in pod.get(kind, [])]


def violations(pod: Json) -> Iterator[str]:
    """What in the spec of a pod the standard forbids."""
    outer = pod.get("securityContext", {})
    yield from (f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field))
    if pod.get("hostUsers") is True:
        yield "hostUsers is set"
    yield from _either(outer, "the pod")
    for sysctl in outer.get("sysctls", []):
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for volume in pod.get("volumes", []):
        if set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume}"
    for container in containers(pod):
        own, name = container.get("securityContext", {}), container["name"]
        yield from _either(own, name)
        yield from _container(own, name)
        yield from _hosts(container)
        if own.get("runAsNonRoot", outer.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot is not true"
        seccomp = own.get("seccompProfile", outer.get("seccompProfile", {})).get("type")
        if seccomp not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile is {seccomp}"


def _either(context: Json, where: str) -> Iterator[str]:
    """What may stand at a pod and at a container."""
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser is 0"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
        yield f"{where}: appArmorProfile"
    options = context.get("seLinuxOptions", {})
    if options.get("type", "") not in _SELINUX or options.get("user") or options.get("role"):
        yield f"{where}: seLinuxOptions"


def _container(context: Json, name: str) -> Iterator[str]:
    capabilities = context.get("capabilities", {})
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities {capabilities}"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"


def _hosts(container: Json) -> Iterator[str]:
    name, lifecycle = container["name"], container.get("lifecycle", {})
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}: hostPort"
    probes = [container.get(kind, {}) for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    for handler in (*probes, lifecycle.get("preStop", {}), lifecycle.get("postStart", {})):
        if any(handler.get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{name}: a probe or hook names a host"


def house_violations(pod: Json) -> Iterator[str]:
    """What this project asks beside: no token, nothing written but to volumes of a size, memory bounded."""
    if pod.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false"
    for volume in pod.get("volumes", []):
        # How large a model is, is not known before it is there: a node's ephemeral storage bounds its volume.
        if (
            "emptyDir" in volume
            and volume["name"] not in ("model", "draft-model", "adapters")
            and "sizeLimit" not in volume["emptyDir"]
        ):
            yield f"emptyDir {volume['name']} has no sizeLimit"
    for container in containers(pod):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{container['name']}: readOnlyRootFilesystem is not true"
        if "memory" not in container.get("resources", {}).get("limits", {}):
            yield f"{container['name']}: no memory limit"
