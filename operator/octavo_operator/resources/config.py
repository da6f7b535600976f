"""The server's configuration file: spec fields by octavo-server's flags, in a content-named ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

from octavo_operator.api import knobs
from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.resources import adapters, draft
from octavo_operator.resources.common import child
from octavo_protocol import names

FILE = "server.toml"
MOUNT = "/etc/octavo"
TEMPLATE = "chat-template"
"""Volume of the user's chat template, and the server's setting for it."""
TEMPLATE_MOUNT = "/etc/octavo-chat-template"
TEMPLATE_FILE = "template.jinja"
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    **{letter: Decimal(10) ** (3 * (i + 2)) for i, letter in enumerate("MGTPE")},
    **{letter + "i": Decimal(2) ** (10 * (i + 1)) for i, letter in enumerate("KMGTPE")},
}


def quantity(text: str) -> Decimal:
    """The value of a Kubernetes quantity such as `500m`, `4` or `16Gi`."""
    number = text.rstrip("mkMGTPEKi")
    return Decimal(number) * _SUFFIXES[text[len(number) :]]


def mib(size: int, *, up: bool = True) -> str:
    """A size in bytes as a quantity for a spec, rounded up, or down if `up` is false."""
    whole, odd = divmod(size, 1 << 20)
    return f"{whole + (1 if up and odd else 0)}Mi"


def threads(spec: Spec) -> int:
    """Threads of a CPU replica: `engine.threads`, else the CPU request.

    A container without a CPU limit sees all CPUs of its node, so two replicas without a bound would both use all.
    """
    return spec.engine.settings.threads or max(1, int(quantity(spec.resources.cpu)))


def server_settings(owner: LLMDeployment) -> Json:
    """Settings of octavo-server by flag name. Unset fields are omitted: the server's defaults apply."""
    spec, on_cpu = owner.spec, owner.spec.resources.gpu.count == 0
    settings: Json = {
        "model": owner.source.path,
        "served-model-name": list(owner.model_names),
        "host": "0.0.0.0",  # noqa: S104 - inside the pod
        "port": names.PORT_API,
        "admin-host": "0.0.0.0",  # noqa: S104
        "admin-port": names.PORT_ADMIN,
        # Trusted: from outside their namespace pods accept requests only from gateways, which check the API keys.
        "tenant-header": True,
        "device": "cpu" if on_cpu else "cuda",
        **knobs.given(spec.engine),
        "drain-timeout": spec.drain.timeout_seconds,
        "stall-seconds": spec.probes.liveness_stall_seconds,
        "log-format": "json",
    }
    if on_cpu:
        settings["threads"] = threads(spec)
    if spec.model.chat_template_config_map_ref is not None:
        settings[TEMPLATE] = f"{TEMPLATE_MOUNT}/{TEMPLATE_FILE}"
    if (guessing := draft.of(spec)) is not None:
        settings["speculation-model"] = guessing.path
    if adapters.slots(spec):
        settings["adapters-file"] = adapters.LIST_FILE
    if spec.engine.settings.tensor_parallel_size == 1:
        del settings["tensor-parallel-size"]  # images from before the flag do not know it
    return {name: value for name, value in settings.items() if value is not None}


def template_volumes(spec: Spec) -> list[Json]:
    """The pod volume of the user's chat template, if there is one."""
    reference = spec.model.chat_template_config_map_ref
    if reference is None:
        return []
    items = [{"key": reference.key, "path": TEMPLATE_FILE}]
    return [{"name": TEMPLATE, "configMap": {"name": reference.name, "items": items}}]


def template_mounts(spec: Spec) -> list[Json]:
    """Where the server's container mounts it."""
    return [
        {"name": volume["name"], "mountPath": TEMPLATE_MOUNT, "readOnly": True} for volume in template_volumes(spec)
    ]


def config_map(owner: LLMDeployment) -> Json:
    """The immutable ConfigMap of these settings. Its name contains their hash, so no running pod sees a change."""
    settings = server_settings(owner)
    return recorded(owner, f"{owner.name}-config-{digest(settings)}", {FILE: _toml(settings)})


def recorded(owner: LLMDeployment, name: str, data: Mapping[str, str]) -> Json:
    """The ConfigMap of a recorded revision, rebuilt from its data."""
    return {**child(owner, "v1", "ConfigMap", name), "immutable": True, "data": dict(data)}


def _toml(settings: Json) -> str:
    """The settings as TOML. Strings, numbers, booleans and lists of strings have the same syntax as in JSON."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
