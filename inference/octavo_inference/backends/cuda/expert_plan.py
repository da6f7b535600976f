"""Plans the matrices of a mixture of experts: those of all experts are one matrix, so that a program finds its own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_inference.backends.cuda.kernels.weight_layouts import Layout
from octavo_inference.backends.cuda.packing import Dense, Quantization, layout_of
from octavo_inference.backends.cuda.plan_parts import Part, parts_of
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import ExpertWeights, Matrix, Tensor


def expert_parts(weights: ExpertWeights, dense: Dense, quantization: Quantization) -> dict[str, tuple[Part, ...]]:
    """The matrices of a mixture by name; `shared.*` are those of its dense MLP.

    `experts.gate_up` has the rows of the gate of expert 0, of its up, of the gate of expert 1, and so on.
    """
    shared = [m for m in (weights.shared_gate, weights.shared_up) if m is not None]
    found: dict[str, tuple[Part, ...]] = {
        "experts.router": (_router(weights, dense),),
        "experts.gate_up": (
            _stacked(
                [m for pair in zip(weights.gate, weights.up, strict=True) for m in pair]
                if weights.gate
                else weights.up,
                [weights.gate_bias, weights.up_bias] if weights.gate else [weights.up_bias],
                dense,
                quantization,
            ),
        ),
        "experts.down": (_stacked(weights.down, [weights.down_bias], dense, quantization),),
    }
    if weights.shared_down is not None:
        found["shared.gate_up"] = parts_of(shared, [None] * len(shared), dense, quantization)
        found["shared.down"] = parts_of([weights.shared_down], [None], dense, quantization)
    return found


def expert_vectors(weights: ExpertWeights) -> list[Tensor]:
    """What the router adds to logits and scores."""
    return [vector for vector in (weights.router_bias, weights.correction) if vector is not None]


def _router(weights: ExpertWeights, dense: Dense) -> Part:
    """The router, then the gate of the shared MLP. Logits are float32, of weights that are not rounded."""
    sources = [weights.router] if weights.shared_router is None else [weights.router, weights.shared_router]
    short = dense == "bf16" and all(source.format == "bf16" for source in sources)
    return Part(Layout("bf16" if short else "f32"), tuple(sources), (None,) * len(sources))


def _stacked(
    matrices: Sequence[Matrix], biases: Sequence[Tensor | None], dense: Dense, quantization: Quantization
) -> Part:
    """The matrices of all experts, with the `biases` [experts, rows] of each of their sides.

    They have one layout: matrices of unlike layouts, or with an order of columns, become floats.
    """
    layouts = {layout_of(matrix, dense, quantization) for matrix in matrices}
    ordered = any(isinstance(matrix, GroupedMatrix) and matrix.order is not None for matrix in matrices)
    layout = Layout(dense) if ordered or len(layouts) > 1 else layouts.pop()
    return Part(
        layout,
        tuple(matrices),
        tuple(
            None if bias is None else bias.rows(expert, expert + 1)
            for expert in range(len(matrices) // len(biases))
            for bias in biases
        ),
    )
