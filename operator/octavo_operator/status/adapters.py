"""The status of adapters: what the inspection found, and how many replicas have each."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.model_source import parse
from octavo_operator.api.v1alpha1_status import AdapterStatus
from octavo_operator.observe.adapters import InspectedAdapter
from octavo_operator.observe.messages import short
from octavo_operator.status.input import AdapterReplicas, StatusInput
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.base_models import is_other_base

_MESSAGE = 1024
# States that reports of replicas decide, and that stay while there are none yet.
_SAMPLED = ("Loading", "Ready")


def adapter_states(view: StatusInput, previous: Sequence[AdapterStatus]) -> tuple[AdapterStatus, ...]:
    """An entry for each adapter of the spec, in its order."""
    before = {known.name: known for known in previous}
    return tuple(_state(view, adapter, before.get(adapter.spec.name)) for adapter in view.adapters)


def _state(view: StatusInput, adapter: InspectedAdapter, before: AdapterStatus | None) -> AdapterStatus:
    found = AdapterStatus(
        name=adapter.spec.name,
        identity=adapter.identity if adapter.found else None,
        revision=(adapter.found.revision if adapter.found else "") or None,
        rank=(adapter.found.rank if adapter.found else 0) or None,
        file_bytes=(adapter.found.file_bytes if adapter.found else 0) or None,
        base_model=(adapter.found.base if adapter.found else "") or None,
        state="Pending",
    )
    if adapter.failure:
        message = f"spec.model.adapters: {adapter.spec.uri!r}: {adapter.failure}"
        return found.model_copy(update={"state": "Failed", "message": short(message, _MESSAGE)})
    if adapter.found is None:
        why = f": {adapter.waiting}" if adapter.waiting else ""
        return found.model_copy(update={"message": short(f"a Job inspects {adapter.spec.uri}{why}", _MESSAGE)})
    if not any(pod.ready for pod in view.active):
        return found.model_copy(update={"message": "no replica is ready"})
    if view.load is None and before is not None and before.revision == found.revision and before.state in _SAMPLED:
        return before  # not sampled yet since the operator started
    replicas = AdapterReplicas() if view.load is None else view.load.adapters.get((adapter.spec.name, adapter.source))
    state = found.model_copy(update=_on_replicas(replicas or AdapterReplicas()))
    if state.state == "Ready" and state.message is None:
        return state.model_copy(update={"message": _other_base(view, adapter.found)})
    return state


def _other_base(view: StatusInput, found: AdapterInspection) -> str | None:
    """What to check about an adapter that names another base model than spec.model.uri."""
    source = parse(view.owner.spec.model.uri)
    served = source.reference.partition("@")[0].partition(":")[0]
    if source.scheme != "hf" or not is_other_base(found.base, [served]):
        return None
    return f"its adapter_config.json names {found.base} as its base model, not {served}: its answers may be poor"


def _on_replicas(replicas: AdapterReplicas) -> dict[str, object]:
    pod, failure = next(iter(replicas.failures.items()), ("", ""))
    message = short(f"pod {pod}: {failure}", _MESSAGE) if failure else None
    if replicas.ready:
        return {"state": "Ready", "ready_replicas": replicas.ready, "message": message}
    if failure:
        return {"state": "Failed", "message": message}
    return {"state": "Loading", "message": "no replica has it yet"}
