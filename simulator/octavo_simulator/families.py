"""The scalers that `make simulate` compares, each with its grid of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from octavo_operator.api.v1alpha1 import ScaleDown, Targets
from octavo_operator.autoscale.types import ScalingSettings
from octavo_simulator.controllers import ablation
from octavo_simulator.controllers.apa import apa
from octavo_simulator.controllers.hpa import duty_cycle, on_pods, on_queue_outside, queue
from octavo_simulator.controllers.kpa import kpa
from octavo_simulator.controllers.kubeai import kubeai
from octavo_simulator.controllers.octavo import octavo, static
from octavo_simulator.controllers.oracle import oracle
from octavo_simulator.controllers.wva import wva
from octavo_simulator.scenario import Controller, Scenario

Knobs = Mapping[str, float]
Build = Callable[[Scenario, Knobs], Controller]


@dataclass(frozen=True, slots=True)
class Family:
    """One scaler: its constructor for a scenario, and the grid of settings; `--quick` uses the first two.

    `baseline`: whether Octavo is compared with it; the oracle and a fixed number are shown for reference only.
    """

    name: str
    title: str
    build: Build
    grid: tuple[Knobs, ...]
    baseline: bool = True


def settings(scenario: Scenario, knobs: Knobs) -> ScalingSettings:
    """Octavo's settings: the objectives times `share` as its targets; otherwise the resource's defaults."""
    share = knobs["share"]
    return ScalingSettings(
        min_replicas=scenario.least,
        max_replicas=scenario.most,
        ttft=scenario.promise.ttft * share,
        tpot=scenario.promise.tpot * share,
        kv_target=knobs.get("kv", Targets().kv_occupancy_percent / 100),
        down_stabilization=knobs.get("down", float(ScaleDown().stabilization_seconds)),
        idle_to_zero=300.0,
        cold_start=scenario.profile.start,
    )


def _octavo(scenario: Scenario, knobs: Knobs) -> Controller:
    fixed = settings(scenario, knobs)
    return octavo(lambda _now: fixed)


def _without(part: str) -> Build:
    def build(scenario: Scenario, knobs: Knobs) -> Controller:
        fixed = settings(scenario, knobs)
        return ablation.without(part, lambda _now: fixed)

    return build


def _kpa(scenario: Scenario, knobs: Knobs) -> Controller:
    return kpa(
        knobs["target"],
        knobs.get("window", 60.0),
        delay=knobs.get("delay", 0.0),
        idle_to_zero=300.0 if scenario.least == 0 else inf,
        least=scenario.least,
    )


def _each(name: str, *values: float, **more: float) -> tuple[Knobs, ...]:
    return tuple({name: value, **more} for value in values)


FAMILIES: Final = (
    Family(
        "octavo",
        "Octavo",
        _octavo,
        (
            *_each("share", 1.0, 0.85, 0.7, 0.6, 0.5, 1.4, 2.0),
            *_each("kv", 0.7, 0.95, share=1.0),
            *_each("down", 60.0, 300.0, share=1.0),
        ),
    ),
    Family(
        "kpa",
        "Knative KPA, concurrency",
        _kpa,
        (
            *_each("target", 10, 2, 3, 4, 5, 6, 8, 9, 11, 13, 15, 17, 20, 30, delay=300.0),
            *_each("target", 10, 8, 6, 5, 4),
        ),
    ),
    Family("kubeai", "KubeAI", lambda _s, k: kubeai(k["target"]), _each("target", 8, 2, 3, 5, 12)),
    Family(
        "wva",
        "WVA tokens",
        lambda _s, k: wva(k["up"], k["down"]),
        tuple({"up": up, "down": up - 0.15} for up in (0.5, 0.3, 0.4, 0.7)),
    ),
    Family("apa", "AIBrix APA, KV", lambda _s, k: apa(k["target"]), _each("target", 0.2, 0.1, 0.3, 0.5)),
    Family(
        "hpa-gpu",
        "HPA, GPU utilisation",
        lambda _s, k: on_pods(duty_cycle(), k["target"]),
        _each("target", 0.7, 0.5, 0.9),
    ),
    Family(
        "hpa-queue",
        "HPA, queue per pod",
        lambda _s, k: on_pods(queue, k["target"]),
        _each("target", 1, 4),
    ),
    Family(
        "keda-queue",
        "KEDA, queue",
        lambda _s, k: on_queue_outside(k["target"]),
        _each("target", 1, 4),
    ),
    Family(
        "static",
        "fixed number",
        lambda _s, k: static(int(k["replicas"])),
        _each("replicas", 8, 4, 6, 12, 20),
        baseline=False,
    ),
    Family(
        "oracle",
        "oracle",
        lambda s, k: oracle(s.trace, s.profile, s.promise, k["busy"]),
        _each("busy", 0.7, 0.4, 0.55),
        baseline=False,
    ),
)
WITHOUT: Final = {
    part: Family(f"octavo without {part}", f"without {part}", _without(part), ()) for part in ablation.PARTS
}
"""Ablations: Octavo without one part of its policy, with Octavo's one setting; not part of the comparison."""
BY_NAME: Final = {family.name: family for family in (*FAMILIES, *WITHOUT.values())}


def label(knobs: Knobs) -> str:
    """Short text of the settings; also the name of a run."""
    return " ".join(f"{name} {value:g}" for name, value in sorted(knobs.items()))
