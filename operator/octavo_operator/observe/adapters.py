"""The adapters of a spec as inspected: from the record of earlier inspections, or by the Jobs that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from octavo_operator.api import model_source
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1_adapters import AdapterSpec
from octavo_operator.observe.inspection import Inspection
from octavo_operator.observe.messages import short
from octavo_operator.resources import adapter_job, adapters
from octavo_protocol.adapters import AdapterInspection, WantedAdapter
from octavo_protocol.model import ModelFailure, decode_adapter_inspection


@dataclass(frozen=True, slots=True)
class InspectedAdapter:
    """An adapter and its inspection. `found` is None until it is inspected; `failure`: why it cannot be served.

    `waiting`: why the inspection has no result yet, if that is known.
    """

    spec: AdapterSpec
    identity: str
    found: AdapterInspection | None = None
    failure: str = ""
    waiting: str = ""

    @property
    def source(self) -> str:
        """What a pod downloads: the URI, at the resolved revision if there is one."""
        revision = (self.found.revision if self.found else "") or self.spec.revision
        return f"{self.spec.uri}@{revision}" if revision else self.spec.uri

    @property
    def path(self) -> str:
        """Where the server finds it, "" for one that is downloaded."""
        source = model_source.parse(self.spec.uri)
        return "" if source.downloads else source.path


def pinned(owner: LLMDeployment) -> dict[str, AdapterInspection]:
    """The inspections that the status has, by identity: for when the record of them was deleted."""
    return {
        known["identity"]: AdapterInspection(
            revision=known.get("revision", ""),
            rank=known.get("rank", 0),
            file_bytes=known.get("fileBytes", 0),
            base=known.get("baseModel", ""),
        )
        for known in owner.status.get("adapters", ())
        if known.get("identity")
    }


def inspected_adapters(
    owner: LLMDeployment, record: Mapping[str, AdapterInspection], inspections: Mapping[str, Inspection]
) -> tuple[InspectedAdapter, ...]:
    """The adapters of the spec. `record`: inspections by identity; `inspections`: those of Jobs, by the Job's name."""
    return tuple(_inspected(owner, adapter, record, inspections) for adapter in owner.spec.model.adapters)


def _inspected(
    owner: LLMDeployment,
    adapter: AdapterSpec,
    record: Mapping[str, AdapterInspection],
    inspections: Mapping[str, Inspection],
) -> InspectedAdapter:
    identity = adapters.identity(adapter)
    found = record.get(identity)
    if found is None:
        inspection = inspections.get(adapter_job.job_name(owner, adapter))
        if inspection is None:
            return InspectedAdapter(adapter, identity)
        read = _read(inspection.message)
        if isinstance(read, ModelFailure) and not inspection.done:
            secret = owner.spec.model.credentials_secret_ref
            given = f" (current Secret: {secret.name!r})" if secret and read.reason == "Unauthorized" else ""
            return InspectedAdapter(adapter, identity, failure=short(f"{read.message}{given}"))
        if not inspection.done:
            problem = next(iter(inspection.pod.problems), None)
            return InspectedAdapter(adapter, identity, waiting=problem.message if problem else "")
        found = read if isinstance(read, AdapterInspection) else AdapterInspection()
    most = owner.spec.engine.settings.max_adapter_rank
    if found.rank > most:
        why = f"its rank is {found.rank}, and spec.engine.adapters.maxRank is {most}; raise it to {found.rank}"
        return InspectedAdapter(adapter, identity, found, failure=why)
    return InspectedAdapter(adapter, identity, found)


def _read(message: str) -> AdapterInspection | ModelFailure | None:
    try:
        return decode_adapter_inspection(message)
    except msgspec.DecodeError:
        return None


def wanted_list(found: tuple[InspectedAdapter, ...], before: Sequence[WantedAdapter] = ()) -> list[WantedAdapter]:
    """The list for the pods: adapters that are inspected, and those that cannot be served, with the reason.

    A name keeps the source it had `before` until its new source is inspected and can be served. Status says why not.
    """
    served = {each.name: each for each in before if not each.failure}
    wanted = []
    for each in found:
        old = served.get(each.spec.name)
        if each.found is not None and not each.failure:
            size = each.found.file_bytes
            wanted.append(WantedAdapter(name=each.spec.name, source=each.source, path=each.path, file_bytes=size))
        elif old is not None:
            wanted.append(old)
        elif each.failure:
            wanted.append(WantedAdapter(name=each.spec.name, source=each.source, failure=each.failure))
    return wanted
