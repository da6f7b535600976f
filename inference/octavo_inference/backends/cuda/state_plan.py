"""Plans the weights of state layers."""

from __future__ import annotations

from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.plan_parts import Part, parts_of
from octavo_inference.models.weights import StateWeights, Tensor


def state_parts(weights: StateWeights, dense: Dense, quantization: Quantization) -> dict[str, tuple[Part, ...]]:
    """The matrices of a state layer by name."""
    rows = [matrix.shape[0] for matrix in weights.inputs]
    biases = [None] * len(rows) if weights.inputs_bias is None else weights.inputs_bias.split(*rows)
    return {
        "state.inputs": parts_of(weights.inputs, biases, dense, quantization),
        "state.output": parts_of([weights.output], [weights.output_bias], dense, quantization),
    }


def state_vectors(weights: StateWeights) -> list[Tensor]:
    """The tensors that are float32 on the device."""
    given = (weights.conv, weights.conv_bias, weights.decay, weights.step_bias, weights.skip, weights.norm)
    return [tensor for tensor in given if tensor is not None]
