"""Resource profiles: what an installation's administrator says of kinds of nodes, so that users need only name one.

A profile fills in what a resource leaves open. It is part of the installation as the images are: pods keep what they
were made with until the resource's own spec changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from octavo_operator.api.base import ApiBlock, LabelValue, ObjectName, Quantity
from octavo_operator.api.resource import LLMDeployment, SpecRefusal
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.api.v1alpha1_scheduling import Toleration


class InstallationProfile(ApiBlock):
    """One profile; every field may be left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    cpu: Quantity | None = None
    memory: Quantity | None = None
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(default={})
    tolerations: tuple[Toleration, ...] = ()
    runtime_class_name: ObjectName | None = None
    priority_class_name: ObjectName | None = None


Profiles = Mapping[str, InstallationProfile]
_PROFILES = TypeAdapter(dict[str, InstallationProfile])


class ProfilesError(ValueError):
    """The installation's profiles cannot be understood; the message names profile and field."""


def read(text: str) -> Profiles:
    """Profiles by name, from JSON. Raises `ProfilesError`."""
    try:
        return _PROFILES.validate_python(json.loads(text))
    except json.JSONDecodeError as error:
        raise ProfilesError(f"resource profiles: not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfilesError(f"resource profiles: {where}: {first['msg']}, found {first['input']!r}") from error


def completed(owner: LLMDeployment, profiles: Profiles) -> LLMDeployment:
    """The resource with its profile filled in; with a `refusal` where this installation cannot carry it out."""
    owner = _without_unknown_zones(owner)
    name = owner.spec.resources.profile
    if name is None:
        return owner
    if name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        message = (
            f"spec.resources.profile: {name!r} is not a profile of this installation (there are: {known}); use one of "
            "them, leave it out, or have the administrator add it (the chart's resourceProfiles)"
        )
        return replace(owner, refusal=SpecRefusal("UnknownProfile", message))
    return replace(owner, spec=_with(owner.spec, profiles[name]))


def _with(spec: Spec, profile: InstallationProfile) -> Spec:
    given = spec.resources.model_fields_set
    sizes = {"cpu": profile.cpu, "memory": profile.memory}
    resources = {field: size for field, size in sizes.items() if size is not None and field not in given}
    own = spec.scheduling
    scheduling = {
        "node_selector": {**profile.node_selector, **own.node_selector},
        "tolerations": (*own.tolerations, *(t for t in profile.tolerations if t not in own.tolerations)),
        "runtime_class_name": own.runtime_class_name or profile.runtime_class_name,
        "priority_class_name": own.priority_class_name or profile.priority_class_name,
    }
    return spec.model_copy(
        update={
            "resources": spec.resources.model_copy(update=resources),
            "scheduling": own.model_copy(update=scheduling),
        }
    )


def _without_unknown_zones(owner: LLMDeployment) -> LLMDeployment:
    """Without schedules whose time zone the API server knows and this program does not."""
    scaling = owner.spec.autoscaling
    unknown = [number for number, schedule in enumerate(scaling.schedules) if not _is_known(schedule.time_zone)]
    if not unknown:
        return owner
    zone = scaling.schedules[unknown[0]].time_zone
    message = (
        f"spec.autoscaling.schedules[{unknown[0]}].timeZone: {zone!r} is not in the operator's time zone database; "
        "use another name of the zone, such as Europe/Berlin"
    )
    kept = tuple(schedule for number, schedule in enumerate(scaling.schedules) if number not in unknown)
    spec = owner.spec.model_copy(update={"autoscaling": scaling.model_copy(update={"schedules": kept})})
    return replace(owner, spec=spec, refusal=SpecRefusal("UnknownTimeZone", message))


def _is_known(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
