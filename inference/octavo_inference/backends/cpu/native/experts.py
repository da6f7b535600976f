"""Mixtures of experts for the kernels: the router's settings, and buffers of a step."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import BLOCK, WIDEST_PANEL
from octavo_inference.common.errors import ModelError
from octavo_inference.models.layers import Experts


@dataclass(frozen=True, slots=True)
class ExpertWidths:
    """Elements of the buffers of a mixture for each token of a step; `quantized` counts blocks of 32."""

    router_logits: int
    inputs: int
    activated: int
    quantized: int


def routing(experts: Experts | None) -> abi.RoutingArgs:
    """How tokens choose experts, as the kernels' structure."""
    if experts is None:
        return abi.RoutingArgs()
    return abi.RoutingArgs(
        count=experts.count,
        chosen=experts.chosen,
        scoring=abi.SCORINGS[experts.scoring],
        normalized=experts.normalized,
        groups=experts.groups,
        chosen_groups=min(experts.chosen_groups, experts.groups),
        group_best=min({"best": 1, "best_two": 2}[experts.group_score], experts.count // experts.groups),
        input_scaled=experts.input_scaled,
        scale=experts.scale,
        clamp=experts.clamp or 0.0,
        near=experts.near,
    )


def check_experts(experts: Experts, step: int) -> None:
    """Raises ModelError for sizes without kernel support: widths must be multiples of `step`."""
    for name, value in (("intermediate", experts.intermediate), ("shared", experts.shared)):
        if value % step:
            raise ModelError(f"the experts' {name} size is {value}; the CPU kernels need a multiple of {step}")
    if experts.count % experts.groups:
        raise ModelError(f"{experts.count} experts cannot be in {experts.groups} groups of one size")
    eligible = experts.count // experts.groups * min(experts.chosen_groups, experts.groups)
    if not 0 < experts.chosen <= eligible:
        raise ModelError(f"{experts.chosen} experts are chosen of {eligible}: choose at least one, and at most all")


def expert_widths(experts: Experts | None, hidden: int, panel: int = WIDEST_PANEL) -> ExpertWidths:
    """What a token needs: rows of its experts and of the shared MLP, one after the other."""
    if experts is None:
        return ExpertWidths(0, 0, 0, 0)
    rows = experts.chosen + (experts.shared > 0)
    activated = experts.chosen * experts.intermediate + experts.shared
    return ExpertWidths(
        router_logits=_padded(experts.count + experts.shared_gate, panel),
        inputs=rows * _padded(hidden, panel),
        activated=activated,
        quantized=-(-max(rows * hidden, activated) // BLOCK),
    )


def _padded(rows: int, panel: int) -> int:
    return -(-rows // panel) * panel
