"""Plans the matrices of a decoder on the device, and their bytes, from formats and shapes alone.

Needs no GPU library: the inspection of a model computes the same sums as `weight_loading.upload` allocates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_inference.backends.cuda.expert_plan import expert_parts, expert_vectors
from octavo_inference.backends.cuda.latent_plan import latent_parts, latent_vectors
from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.plan_parts import Part, parts_of
from octavo_inference.backends.cuda.state_plan import state_parts, state_vectors
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights

_OUTPUT = {"o": ("o",)}
_ATTENTION = {"qkv": ("q", "k", "v", "attention_gate"), **_OUTPUT}
_GATED, _NOT_GATED = ({"gate_up": names, "down": ("down",)} for names in (("gate", "up"), ("up",)))
_NORMS = ("input_norm", "post_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_output_norm")
_VECTORS = (*_NORMS, *(f"{name}_bias" for name in _NORMS), "sinks", "xielu")
_OTHERS = ("final_norm", "final_norm_bias", "embedding_norm", "embedding_norm_bias", "head_bias")


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The planned allocations: the parts of each layer's matrices by name; `head` may be rows of the embedding."""

    embedding: Part
    layers: tuple[dict[str, tuple[Part, ...]], ...]
    head: Part | slice
    vectors: tuple[Tensor, ...]
    positions: Part | None = None

    @property
    def parts(self) -> list[Part]:
        """All matrices."""
        inside = [part for layer in self.layers for parts in layer.values() for part in parts]
        alone = (self.embedding, self.positions, None if isinstance(self.head, slice) else self.head)
        return [*(part for part in alone if part is not None), *inside]

    @property
    def ordered(self) -> bool:
        """Whether a matrix has an order of columns."""
        return any(part.order is not None for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices and vectors, without the products' workspace."""
        return sum(part.nbytes for part in self.parts) + sum(4 * math.prod(vector.shape) for vector in self.vectors)


def plan_weights(config: ModelConfig, weights: Weights, dense: Dense, quantization: Quantization) -> WeightPlan:
    """Plan all weights of a decoder; floats become `dense`. Reads no weights."""
    layers = weights.layers[: config.layers]

    def alone(tensor: Matrix) -> Part:
        [part] = parts_of([tensor], [None], dense, "auto" if quantization == "fp8" else quantization)
        return part

    def fused(layer: LayerWeights, groups: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Part, ...]]:
        present = {
            group: [name for name in names if getattr(layer, name) is not None] for group, names in groups.items()
        }
        return {
            group: parts_of(
                [getattr(layer, name) for name in names],
                [getattr(layer, f"{name}_bias", None) for name in names],
                dense,
                quantization,
            )
            for group, names in present.items()
            if names
        }

    def matrices(layer: LayerWeights) -> dict[str, tuple[Part, ...]]:
        experts, latent = layer.experts, layer.latent
        mixers = fused(layer, _ATTENTION if latent is None else _OUTPUT)
        if latent is not None:
            mixers |= latent_parts(latent, dense, quantization)
        if layer.state is not None:
            mixers |= state_parts(layer.state, dense, quantization)
        if experts is not None:
            return mixers | expert_parts(experts, dense, quantization)
        return mixers | fused(layer, _GATED if config.gated else _NOT_GATED)

    vectors = [getattr(layer, name) for layer in layers for name in _VECTORS]
    others = [getattr(weights, name) for name in _OTHERS]
    added = [vector for layer in layers if layer.experts is not None for vector in expert_vectors(layer.experts)]
    added += [vector for layer in layers if layer.state is not None for vector in state_vectors(layer.state)]
    added += [vector for layer in layers if layer.latent is not None for vector in latent_vectors(layer.latent)]
    return WeightPlan(
        alone(weights.embedding),
        tuple(map(matrices, layers)),
        _rows_within(weights.embedding, weights.lm_head) or alone(weights.lm_head),
        tuple(vector for vector in (*vectors, *added, *others) if vector is not None),
        None if weights.positions is None else parts_of([weights.positions], [None], dense, "dense")[0],
    )


def _rows_within(whole: Tensor, part: Matrix) -> slice | None:
    """Rows of `whole` that `part` is a view of, None with memory of its own: a tied head, or a rank's shard of it."""
    if not isinstance(part, Tensor):
        return None
    if (part.format, part.shape[1:], part.data.strides) != (whole.format, whole.shape[1:], whole.data.strides):
        return None
    first, rest = divmod(part.data.ctypes.data - whole.data.ctypes.data, whole.data.strides[0])
    end = first + part.shape[0]
    return slice(first, end) if rest == 0 and 0 <= first < end <= whole.shape[0] else None
