"""Where the weights come from: volumes, mounts and the init container that downloads."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo_operator.api.blocks import Json
from octavo_operator.api.v1alpha1 import Model
from octavo_operator.api.v1alpha1_engine import Env
from octavo_operator.builders.common import SECURITY

MOUNT = "/model"
VOLUME = "model"
TOKEN_KEY = "token"  # noqa: S105 - the name of a key, not a token
PREFETCH = "prefetch"
# Of the server's environment, what the download needs too.
DOWNLOAD_ENV = ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class Source:
    """A model URI, taken apart. `path` is where the server finds the weights in its container."""

    scheme: str
    reference: str
    path: str

    @property
    def downloads(self) -> bool:
        """Whether somebody has to fetch the weights over the network."""
        return self.scheme == "hf"


def parse(model: Model) -> Source:
    """The source a valid `model.uri` names."""
    scheme, _, reference = model.uri.partition("://")
    if scheme != "pvc":
        return Source(scheme, reference, MOUNT)
    claim, _, path = reference.partition("/")
    return Source(scheme, claim, f"{MOUNT}/{path.strip('/')}".rstrip("/"))


def volume(source: Source) -> Json:
    """The volume `model` of the pod."""
    if source.scheme == "oci":
        return {"name": VOLUME, "image": {"reference": source.reference}}
    if source.scheme == "pvc":
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": source.reference, "readOnly": True}}
    return {"name": VOLUME, "emptyDir": {}}


def env_entries(env: tuple[Env, ...]) -> list[Json]:
    """Environment variables as a pod spells them."""
    return [entry.model_dump(by_alias=True, exclude_none=True) for entry in env]


def pinned(model: Model, revision: str | None) -> str:
    """What a download is told to fetch."""
    return model.uri if revision is None else f"{model.uri}@{revision}"


def download_env(model: Model, env: tuple[Env, ...]) -> list[Json]:
    """Variables of a container that speaks to the hub: way, and token. Empty for models that need no download."""
    if not parse(model).downloads:
        return []
    variables = env_entries(tuple(entry for entry in env if entry.name in DOWNLOAD_ENV))
    if model.credentials_secret_ref is not None:
        reference = {"name": model.credentials_secret_ref.name, "key": TOKEN_KEY}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def prefetch(model: Model, env: tuple[Env, ...], image: str, revision: str) -> Json:
    """The init container that downloads a hub model into the volume, at `revision` when that was resolved."""
    return {
        "name": PREFETCH,
        "image": image,
        "command": [
            "python",
            "-m",
            "octavo_inference.prefetch",
            pinned(model, revision or model.revision),
            "--to",
            MOUNT,
        ],
        "env": [{"name": "HOME", "value": "/tmp"}, *download_env(model, env)],  # noqa: S108 - the container's own volume
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": VOLUME, "mountPath": MOUNT}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def download_port(env: tuple[Env, ...]) -> int:
    """TCP port of the hub: 443 unless HF_ENDPOINT says otherwise."""
    endpoint = next((entry.value for entry in env if entry.name == "HF_ENDPOINT" and entry.value), "https://hub")
    parts = urlsplit(endpoint)
    return parts.port or (80 if parts.scheme == "http" else 443)
