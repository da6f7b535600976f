"""Plans the matrices of latent attention on the device."""

from __future__ import annotations

from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.plan_parts import Part, parts_of
from octavo_inference.models.weights import LatentWeights, Tensor, required


def latent_parts(weights: LatentWeights, dense: Dense, quantization: Quantization) -> dict[str, tuple[Part, ...]]:
    """The parts by name, without the output projection.

    Expansions are multiplied head by head, as floats: they are small.
    """
    direct = weights.q_up is None
    given = [required(weights.q if direct else weights.q_down), weights.kv_down]
    plan = {
        "qkv": parts_of(given, [None] * 2, dense, quantization),
        "k_up": parts_of([weights.k_up], [None], dense, "dense"),
        "v_up": parts_of([weights.v_up], [None], dense, "dense"),
    }
    return plan if direct else plan | {"q_up": parts_of([required(weights.q_up)], [None], dense, quantization)}


def latent_vectors(weights: LatentWeights) -> list[Tensor]:
    """The norms of the latents."""
    return [norm for norm in (weights.kv_norm, weights.q_norm) if norm is not None]
