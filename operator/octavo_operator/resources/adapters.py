"""LoRA adapters: the list that running pods follow, and the container that downloads what is on it.

The list is a ConfigMap of a fixed name. A change of it reaches the pods through the kubelet and restarts none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import ModelSource, parse
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.api.v1alpha1_adapters import MOST, AdapterSpec
from octavo_operator.resources import source
from octavo_operator.resources.common import NO_GPUS, SECURITY, child
from octavo_protocol import names
from octavo_protocol.adapters import AdapterInspection, WantedAdapter, decode_wanted, encode_wanted
from octavo_protocol.engine_settings import added_tokens
from octavo_protocol.model import ModelReport

CONTAINER = "adapters"
VOLUME = "adapters"
MOUNT = "/adapters"
LIST_FILE = f"{MOUNT}/list.json"
WANTED_VOLUME = "adapters-wanted"
WANTED_MOUNT = "/adapters-wanted"
WANTED_FILE = "list.json"
CREDENTIALS_VOLUME = "adapters-credentials"
CREDENTIALS_MOUNT = "/adapters-credentials"
_INSPECTED = "inspected.json"
# Bytes of an adapter's other files and tensors: tokenizer and template of 73 MiB at most, configuration, biases.
_OTHERS = 160 << 20
# Bytes that the folder may exceed its limit by before the kubelet acts.
_SLACK = 1 << 30
# Annotation of a pod: a hash of the list. The kubelet updates the volumes of a pod soon after its object changes.
ANNOTATION_LIST = f"{names.API_GROUP}/adapter-list"


def slots(spec: Spec) -> int:
    """Adapters that a replica may have on its device; 0: it takes none."""
    return spec.engine.settings.max_loaded_adapters


def identity(adapter: AdapterSpec) -> str:
    """Ten hex digits, a hash of its URI and revision. With another Secret, a branch is not resolved again."""
    return digest({"uri": adapter.uri, "revision": adapter.revision})


def sources(owner: LLMDeployment) -> list[ModelSource]:
    """Where adapters are downloaded from."""
    return [each for each in (parse(adapter.uri) for adapter in owner.spec.model.adapters) if each.downloads]


def list_name(owner: LLMDeployment) -> str:
    """Name of the ConfigMap. Its hash is of the resource's name, so that no other object has it by chance."""
    return f"{owner.name}-adapters-{digest(str(owner.key))}"


def config_map(owner: LLMDeployment, wanted: Sequence[WantedAdapter], found: Mapping[str, AdapterInspection]) -> Json:
    """The list for the pods, and the inspections by identity, which are not repeated."""
    body = child(owner, "v1", "ConfigMap", list_name(owner))
    inspected = {known: msgspec.to_builtins(one) for known, one in sorted(found.items())}
    body["data"] = {
        WANTED_FILE: encode_wanted(list(wanted)).decode(),
        _INSPECTED: msgspec.json.format(msgspec.json.encode(inspected)).decode(),
    }
    return body


def recorded(body: Json | None) -> dict[str, AdapterInspection]:
    """The inspections in the ConfigMap, by identity. Data that someone damaged is none: they are inspected again."""
    text = ((body or {}).get("data") or {}).get(_INSPECTED, "{}")
    try:
        return msgspec.json.decode(text, type=dict[str, AdapterInspection])
    except msgspec.DecodeError:
        return {}


def listed(body: Json | None) -> list[WantedAdapter]:
    """The list in the ConfigMap; empty if someone damaged it."""
    text = ((body or {}).get("data") or {}).get(WANTED_FILE, "[]")
    try:
        return decode_wanted(text.encode())
    except msgspec.DecodeError:
        return []


def list_digest(body: Json) -> str:
    """Ten hex digits, a hash of the list in the ConfigMap."""
    return digest(body["data"][WANTED_FILE])


def disk_bytes(spec: Spec, found: ModelReport) -> int:
    """Most bytes that a pod downloads, 0 for no limit. It does not depend on the adapters.

    A full list of adapters of the largest rank that change all matrices in float32, and another one during an exchange.
    Each may have the embedding and the head whole, besides their changes.
    """
    if not found.adapter_elements:
        return 0
    rank = spec.engine.settings.max_adapter_rank
    tokens = found.vocab + added_tokens(spec.engine.settings)
    outer = 2 * (tokens * found.hidden + rank * (tokens + found.hidden))
    return 2 * MOST * (4 * (rank * found.adapter_elements + outer) + _OTHERS)


def volumes(owner: LLMDeployment, found: ModelReport) -> list[Json]:
    """The pod volumes for the list, the adapters and the credentials; none without slots."""
    if not slots(owner.spec):
        return []
    secret = owner.spec.model.credentials_secret_ref
    # A volume, not variables: keys that change, or come later, reach pods that run. Without the Secret they start, too.
    keys = [{"key": known.key, "path": known.variable} for scheme in source.CREDENTIALS.values() for known in scheme]
    credentials: list[Json] = []
    if secret:
        reference = {"secretName": secret.name, "items": keys, "optional": True}
        credentials = [{"name": CREDENTIALS_VOLUME, "secret": reference}]
    items = [{"key": WANTED_FILE, "path": WANTED_FILE}]
    wanted = {"name": list_name(owner), "items": items, "optional": True}
    # The kubelet evicts a pod that exceeds a limit. The container refuses an adapter before that.
    limit = disk_bytes(owner.spec, found)
    room = {"sizeLimit": f"{(limit + _SLACK) >> 20}Mi"} if limit else {}
    return [{"name": VOLUME, "emptyDir": room}, {"name": WANTED_VOLUME, "configMap": wanted}, *credentials]


def mounts(spec: Spec) -> list[Json]:
    """Where the server's container finds them."""
    return [{"name": VOLUME, "mountPath": MOUNT, "readOnly": True}] if slots(spec) else []


def containers(owner: LLMDeployment, image: str, found: ModelReport) -> list[Json]:
    """The sidecar that downloads adapters while the server runs; none without slots.

    Nothing in it depends on the adapters, whose change must not replace pods.
    """
    if not slots(owner.spec):
        return []
    follow = ["--wanted", f"{WANTED_MOUNT}/{WANTED_FILE}", "--to", MOUNT]
    if limit := disk_bytes(owner.spec, found):
        follow += ["--limit", str(limit)]
    read = []
    if owner.spec.model.credentials_secret_ref:
        follow += ["--credentials", CREDENTIALS_MOUNT]
        read = [{"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_MOUNT, "readOnly": True}]
    return [
        {
            "name": CONTAINER,
            "image": image,
            "restartPolicy": "Always",
            "command": ["python", "-m", "octavo_inference.sync_adapters", *follow],
            "env": [{"name": "HOME", "value": "/tmp"}, NO_GPUS, *source.download_env(owner)],  # noqa: S108
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
            "securityContext": SECURITY,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": VOLUME, "mountPath": MOUNT},
                {"name": WANTED_VOLUME, "mountPath": WANTED_MOUNT, "readOnly": True},
                *read,
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            ],
        }
    ]
