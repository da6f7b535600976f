"""What a LoRA adapter adds to the cost of a request on a pod that has not loaded it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from octavo_protocol.adapters import AdapterState

# Steps of an empty pod that a load takes. Its copy to the device is about as long as one step. It often takes the slot
# of another adapter, which has to be loaded again.
CACHED_STEPS = 4.0
# The pod reads the adapter from its disk first.
STORED_STEPS = 20.0
# The pod has not read the adapter yet, or has not reported it.
LOADING_STEPS = 100.0
_STEPS: Final[dict[AdapterState, float]] = {"stored": STORED_STEPS, "cached": CACHED_STEPS}


class AdapterPlace(NamedTuple):
    """A request's adapter at a pod. `steps`: those that its load takes. `waits`: for a slot, because all are in use."""

    steps: float
    waits: bool


IN_PLACE = AdapterPlace(0.0, waits=False)
"""The adapter is loaded, or the request is for the base model."""


def adapter_place(state: AdapterState | None, *, sent: bool, used: int, limit: int) -> AdapterPlace:
    """The place of an adapter in `state`, None if the pod has not reported it.

    `sent`: requests for it were sent there, in flight or since the report, so the pod loads it already. `used`: other
    adapters in use there; `limit`: the most that it has loaded, 0 if unknown.
    """
    if sent or state == "loaded":
        return IN_PLACE
    return AdapterPlace(_STEPS.get(state or "loading", LOADING_STEPS), 0 < limit <= used)


def load_seconds(place: AdapterPlace, empty_step: float, step: float, rows: float, output: float) -> float:
    """Seconds that a request waits for its adapter, and by which the load delays the other rows.

    `empty_step` and `step`: seconds of an empty step and of one now. A slot becomes free when a row in it has finished.
    """
    wait = (output + 1) * step if place.waits else 0.0
    return place.steps * empty_step * (1 + rows) + wait
