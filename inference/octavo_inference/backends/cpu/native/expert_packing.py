"""Packs the mixture of experts of a layer."""

from __future__ import annotations

from dataclasses import replace

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import router_format
from octavo_inference.backends.cpu.native.packing import Packer, address
from octavo_inference.models.weights import ExpertWeights, Matrix, Tensor, required


def pack_experts(packer: Packer, weights: ExpertWeights, layer: int) -> abi.ExpertLayer:
    """Pack a layer's mixture. The shared MLP is packed as one more expert, and its gate as a row of the router."""
    count = len(weights.up)

    def biases(number: int, *roles: str) -> list[Tensor | None]:
        stacked = [None if number == count else getattr(weights, f"{role}_bias") for role in roles]
        return [bias if bias is None else bias.rows(number, number + 1) for bias in stacked]

    def names(number: int, *roles: str) -> list[str]:
        return [f"{role} of expert {number} of layer {layer}" for role in roles]

    def up(number: int, gate: Matrix | None, matrix: Matrix) -> abi.PackedMatrix:
        if gate is None:
            return packer.matrix((matrix,), biases=biases(number, "up"), names=names(number, "up"))
        both = ("gate", "up")
        return packer.matrix((gate, matrix), abi.INTERLEAVED, biases(number, *both), names(number, *both))

    gates = weights.gate or (None,) * count
    gate_up = [up(number, *pair) for number, pair in enumerate(zip(gates, weights.up, strict=True))]
    down = [
        packer.matrix((matrix,), biases=biases(number, "down"), names=names(number, "down"))
        for number, matrix in enumerate(weights.down)
    ]
    if weights.shared_up is not None:
        gate_up.append(up(count, weights.shared_gate, weights.shared_up))
        down.append(packer.matrix((required(weights.shared_down),), names=names(count, "down")))
    routers = [weights.router] if weights.shared_router is None else [weights.router, weights.shared_router]
    counters = packer.into.expert_tokens
    return abi.ExpertLayer(
        router=replace(packer, weights=router_format(routers)).matrix(
            routers, biases=(weights.router_bias,), names=[f"router of layer {layer}"] * len(routers)
        ),
        correction=packer.vector(weights.correction),
        gate_up=packer.array(gate_up),
        down=packer.array(down),
        tokens=None if counters is None else address(counters[layer]),
        shared=weights.shared_up is not None,
        shared_gate=weights.shared_router is not None,
        integers=any(abi.is_of_integers(matrix.format) for matrix in (*gate_up, *down)),
        ordered=any(matrix.order is not None for matrix in (*gate_up, *down)),
    )
