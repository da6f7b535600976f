"""Packs mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import router_format
from octavo_inference.backends.cpu.native.packing import Packer, address
from octavo_inference.models.weights import ExpertWeights, Tensor, required


def pack_experts(packer: Packer, weights: ExpertWeights, layer: int) -> abi.ExpertLayer:
    """Pack a layer's mixture. The shared MLP is packed as one more expert, and its gate as a row of the router."""

    def biases(number: int, *roles: str) -> list[Tensor | None]:
        stacked = [getattr(weights, f"{role}_bias") for role in roles]
        return [bias if bias is None else bias.rows(number, number + 1) for bias in stacked]

    def names(number: int, *roles: str) -> list[str]:
        return [f"{role} of expert {number} of layer {layer}" for role in roles]

    gate_up = [
        packer.matrix(pair, abi.INTERLEAVED, biases(number, "gate", "up"), names(number, "gate", "up"))
        for number, pair in enumerate(zip(weights.gate, weights.up, strict=True))
    ]
    down = [
        packer.matrix((matrix,), biases=biases(number, "down"), names=names(number, "down"))
        for number, matrix in enumerate(weights.down)
    ]
    if weights.shared_up is not None:
        pair = (required(weights.shared_gate), weights.shared_up)
        gate_up.append(packer.matrix(pair, abi.INTERLEAVED, names=names(len(weights.up), "gate", "up")))
        down.append(packer.matrix((required(weights.shared_down),), names=names(len(weights.up), "down")))
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
