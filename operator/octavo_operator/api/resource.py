"""One LLMDeployment as the operator works with it: parsed spec, plain previous status."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from pydantic import ValidationError

from octavo_operator.api import knobs, model_source
from octavo_operator.api.base import Json
from octavo_operator.api.model_source import ModelSource
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.api.v1alpha1_adapters import LOADED

# The blocks a pod is made from. A change in any of them rolls the pods; nothing else does.
POD_BLOCKS = frozenset({"model", "cache", "engine", "resources", "drain", "probes", "scheduling"})


class InvalidSpecError(ValueError):
    """The spec cannot be understood; the message names field, value and fix."""


@dataclass(frozen=True, slots=True)
class Key:
    """Identity of one LLMDeployment in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class SpecRefusal:
    """Why this installation cannot carry a spec out: a reason in one word, and a message with field, value and fix."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class LLMDeployment:
    """The parsed resource. `status` is what the last pass wrote (empty when none did).

    `revision`: ten hex digits over what the pods are made from, as the resource says it. `source` is `model.uri` taken
    apart; `cache_claim` names the claim that keeps downloaded weights, "" where none does.
    """

    key: Key
    uid: str
    generation: int
    deleting: bool
    spec: Spec
    status: Json
    revision: str
    refusal: SpecRefusal | None = None
    source: ModelSource = field(init=False)
    cache_claim: str = field(init=False)

    def __post_init__(self) -> None:
        """Take apart what every part of a pass asks for."""
        source, cache = model_source.parse(self.spec.model.uri), self.spec.cache
        kept = cache.type == "PersistentVolumeClaim" and source.downloads
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "cache_claim", (cache.claim_name or f"{self.name}-cache") if kept else "")

    @property
    def name(self) -> str:
        """Name of the resource."""
        return self.key.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource and of all its children."""
        return self.key.namespace

    @property
    def model_names(self) -> tuple[str, ...]:
        """The served name, then the aliases."""
        model = self.spec.model
        served = model.served_name or self.name
        return (served, *(alias for alias in model.aliases if alias != served))


def parse(body: Json) -> LLMDeployment:
    """The resource in an API object. Raises `InvalidSpecError` when the spec does not fit the API's types."""
    meta = body["metadata"]
    try:
        spec = _with_slots(Spec.model_validate(body.get("spec", {})))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in ("spec", *first["loc"]))
        raise InvalidSpecError(f"{path}: {first['msg']}, found {str(first['input'])[:100]!r}") from error
    return LLMDeployment(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        spec=spec,
        status=body.get("status") or {},
        revision=_revision(spec),
    )


def _with_slots(spec: Spec) -> Spec:
    """The spec with the default of `engine.adapters.maxLoaded`, which depends on whether there are adapters."""
    engine = spec.engine
    if not spec.model.adapters or knobs.given(engine)["max-loaded-adapters"] is not None:
        return spec
    limits = engine.adapters.model_copy(update={"max_loaded": LOADED})
    return spec.model_copy(update={"engine": engine.model_copy(update={"adapters": limits})})


def _revision(spec: Spec) -> str:
    """Only what differs from the API's defaults counts. Adapters do not: running pods load them.

    So neither a new field nor a changed default of a newer operator gives an unchanged resource another revision.
    """
    parts = spec.model_dump(
        include=set(POD_BLOCKS), exclude={"model": {"adapters"}}, exclude_defaults=True, by_alias=True
    )
    if spec.resources.profile is not None:
        # Where a profile would decide otherwise, to give the operator's own default is a difference.
        parts["resources"] |= spec.resources.model_dump(include={"cpu", "memory"}, exclude_unset=True)
    return digest(parts)


def digest(value: object) -> str:
    """Ten hex digits that name a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
