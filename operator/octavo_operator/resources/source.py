"""The source of the weights: volumes, credentials and the init container that downloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import MOUNT, ModelSource
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1 import ModelSpec
from octavo_operator.api.v1alpha1_adapters import AdapterSpec
from octavo_operator.api.v1alpha1_engine import DraftModelSpec, Env
from octavo_operator.resources.common import NO_GPUS, SECURITY

VOLUME = "model"
PREFETCH = "prefetch"
# By scheme, the variable for a non-default endpoint of hub or bucket.
ENDPOINTS = {"hf": "HF_ENDPOINT", "s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL"}
# The variables of the server's environment that the download needs, too.
DOWNLOAD_ENV = (
    *ENDPOINTS.values(),
    "AWS_REGION",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A key of the Secret, and the environment variable for it."""

    key: str
    variable: str
    optional: bool = False


# By scheme; the names for buckets are the usual ones of other tools.
CREDENTIALS = {
    "hf": (Credential("token", "HF_TOKEN"),),
    "s3": (
        Credential("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
        Credential("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
        Credential("AWS_SESSION_TOKEN", "AWS_SESSION_TOKEN", optional=True),
    ),
    "gs": (Credential("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY"),),
}


def volume(source: ModelSource, revision: str = "", name: str = VOLUME) -> Json:
    """The pod volume of a model. An image is that of the digest `revision`, if there is one."""
    if source.scheme == "oci":
        return {"name": name, "image": {"reference": image(source, revision)}}
    if source.scheme == "pvc":
        return {"name": name, "persistentVolumeClaim": {"claimName": source.reference, "readOnly": True}}
    return {"name": name, "emptyDir": {}}


def image(source: ModelSource, revision: str) -> str:
    """The reference of a model's image, at the digest `revision` if there is one: a tag may move."""
    return f"{source.reference}@{revision}" if revision and source.tagged else source.reference


def env_entries(env: tuple[Env, ...]) -> list[Json]:
    """Environment variables as JSON of the pod API."""
    return [entry.model_dump(by_alias=True, exclude_none=True) for entry in env]


def pinned(model: ModelSpec | DraftModelSpec | AdapterSpec, revision: str | None) -> str:
    """The argument of a download: the URI, with `@revision` if there is one."""
    return model.uri if revision is None else f"{model.uri}@{revision}"


def env_for(owner: LLMDeployment, source: ModelSource) -> list[Json]:
    """Variables of a container that downloads a source or resolves its tag: endpoint, proxy and credentials.

    Credentials are those of the model's scheme; a source of another scheme gets none.
    """
    given = _credentials(owner, source.scheme) if source.scheme == owner.source.scheme else []
    return [*download_env(owner), *given]


def env_for_adapter(owner: LLMDeployment, source: ModelSource) -> list[Json]:
    """Variables of a container that reads the source of an adapter.

    The Secret may have keys for its scheme, and must if it is the scheme of the model.
    """
    optional = source.scheme != owner.source.scheme
    return [*download_env(owner), *_credentials(owner, source.scheme, optional=optional)]


def download_env(owner: LLMDeployment) -> list[Json]:
    """Endpoints and proxies of a container that downloads."""
    return env_entries(tuple(entry for entry in owner.spec.engine.env if entry.name in DOWNLOAD_ENV))


def _credentials(owner: LLMDeployment, scheme: str, *, optional: bool = False) -> list[Json]:
    secret = owner.spec.model.credentials_secret_ref
    variables: list[Json] = []
    if secret is None:
        return variables
    for given in CREDENTIALS.get(scheme, ()):
        reference: Json = {"name": secret.name, "key": given.key}
        if given.optional or optional:
            reference["optional"] = True
        variables.append({"name": given.variable, "valueFrom": {"secretKeyRef": reference}})
    return variables


def env_for_all(owner: LLMDeployment, sources: Iterable[ModelSource]) -> list[Json]:
    """Variables of a container that reaches all of these sources, each variable once."""
    return list({entry["name"]: entry for source in sources for entry in env_for(owner, source)}.values())


def prefetch(owner: LLMDeployment, image: str, revision: str) -> list[Json]:
    """The init container that downloads the model into its volume, at the resolved `revision` if any."""
    if not owner.source.downloads or owner.cache_claim:
        return []
    argument = pinned(owner.spec.model, revision or owner.spec.model.revision)
    mount = {"name": VOLUME, "mountPath": MOUNT}
    return [prefetch_container(PREFETCH, image, argument, env_for(owner, owner.source), mount)]


def prefetch_container(name: str, image: str, argument: str, env: list[Json], mount: Json) -> Json:
    """An init container that downloads what `argument` names into the volume of `mount`."""
    return {
        "name": name,
        "image": image,
        "command": ["python", "-m", "octavo_inference.prefetch", argument, "--to", mount["mountPath"]],
        "env": [{"name": "HOME", "value": "/tmp"}, NO_GPUS, *env],  # noqa: S108 - the container's own volume
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def download_ports(owner: LLMDeployment, sources: Iterable[ModelSource]) -> list[int]:
    """TCP ports of models' sources: 443 unless the endpoint variable sets another."""
    return sorted({port for source in sources for port in _ports(owner, source)})


def _ports(owner: LLMDeployment, source: ModelSource) -> list[int]:
    """Those of one source. A registry with a port of its own may send to 443 for a token."""
    if source.scheme == "oci":
        return [source.registry_port, 443]
    variable = ENDPOINTS[source.scheme]
    endpoint = next(
        (entry.value for entry in owner.spec.engine.env if entry.name == variable and entry.value), "https://default"
    )
    parts = urlsplit(endpoint)
    return [parts.port or (80 if parts.scheme == "http" else 443)]
