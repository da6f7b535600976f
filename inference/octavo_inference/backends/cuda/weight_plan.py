"""Plans the matrices of a decoder on the device, and their bytes, from formats and shapes alone.

Needs no GPU library: the inspection of a model computes the same sums as `weight_loading.upload` allocates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cuda.kernels.weight_layouts import Layout
from octavo_inference.backends.cuda.packing import Dense, PlaneType, Quantization, layout_of, plane_shapes
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import LatentWeights, LayerWeights, Matrix, Tensor, Weights, required

_BYTES: dict[PlaneType, int] = {"f32": 4, "bf16": 2, "f16": 2, "u8": 1}
_FUSED = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
_LATENT_NORMS = ("kv_norm", "q_norm")
_NORMS = ("input_norm", "post_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_output_norm")


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix of the device: `sources` of one layout stacked by rows, `biases` one for each, or None.

    The sources of a part have the same `order` of columns, or none.
    """

    layout: Layout
    sources: tuple[Matrix, ...]
    biases: tuple[Tensor | None, ...]
    order: NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        """Rows of all sources."""
        return sum(source.shape[0] for source in self.sources)

    @property
    def cols(self) -> int:
        """Columns of each source."""
        return self.sources[0].shape[1]

    @property
    def bias_type(self) -> PlaneType | None:
        """The type of the biases on the device, None without any."""
        # Libraries expect a bias in the type of their weights; our kernels add it to float32 sums.
        if all(bias is None for bias in self.biases):
            return None
        return "bf16" if self.layout.form == "bf16" else "f32"

    @property
    def nbytes(self) -> int:
        """Bytes of planes and biases."""
        planes = plane_shapes(self.layout, self.rows, self.cols).values()
        bias = 0 if self.bias_type is None else self.rows * _BYTES[self.bias_type]
        whole = 2 * len(self.layout.levels) + (0 if self.order is None else 4 * self.cols)
        return sum(_BYTES[kind] * math.prod(shape) for kind, shape in planes) + whole + bias


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The planned allocations: the parts of each layer's matrices by name; `head` may be rows of the embedding."""

    embedding: Part
    layers: tuple[dict[str, tuple[Part, ...]], ...]
    head: Part | slice
    vectors: tuple[Tensor, ...]

    @property
    def parts(self) -> list[Part]:
        """All matrices."""
        inside = [part for layer in self.layers for parts in layer.values() for part in parts]
        return [self.embedding, *inside, *([] if isinstance(self.head, slice) else [self.head])]

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
        [part] = _parts([tensor], [None], dense, "auto" if quantization == "fp8" else quantization)
        return part

    def matrices(layer: LayerWeights) -> dict[str, tuple[Part, ...]]:
        return {
            fused: _parts(
                [getattr(layer, name) for name in names],
                [getattr(layer, f"{name}_bias") for name in names],
                dense,
                quantization,
            )
            for fused, names in _FUSED.items()
            if fused != "qkv" or layer.latent is None
        } | ({} if layer.latent is None else latents(layer.latent))

    def latents(latent: LatentWeights) -> dict[str, tuple[Part, ...]]:
        """Expansions are multiplied head by head, as floats: they are small."""
        direct = latent.q_up is None
        given = [required(latent.q if direct else latent.q_down), latent.kv_down]
        plan = {
            "qkv": _parts(given, [None] * 2, dense, quantization),
            "k_up": _parts([latent.k_up], [None], dense, "dense"),
            "v_up": _parts([latent.v_up], [None], dense, "dense"),
        }
        return plan if direct else plan | {"q_up": _parts([required(latent.q_up)], [None], dense, quantization)}

    norms = [getattr(layer, name) for layer in layers for name in _NORMS]
    norms += [getattr(layer.latent, name) for layer in layers if layer.latent for name in _LATENT_NORMS]
    return WeightPlan(
        alone(weights.embedding),
        tuple(map(matrices, layers)),
        _rows_within(weights.embedding, weights.lm_head) or alone(weights.lm_head),
        tuple(norm for norm in (*norms, weights.final_norm) if norm is not None),
    )


def _parts(
    tensors: Sequence[Matrix], biases: Sequence[Tensor | None], dense: Dense, quantization: Quantization
) -> tuple[Part, ...]:
    """Merge neighbours of one layout and order of columns into one matrix.

    Others stay separate, although each costs a launch. Q4_K_M files keep q and k in one format and v in another, and a
    layout for both would grow q and k by three quarters.
    """

    def kind(pair: tuple[Matrix, Tensor | None]) -> tuple[Layout, bytes | None]:
        layout = layout_of(pair[0], dense, quantization)
        order = _order(pair[0], layout)
        return layout, None if order is None else order.tobytes()

    pairs = zip(tensors, biases, strict=True)
    parts = []
    for (layout, _), group in groupby(pairs, kind):
        sources, given = zip(*group, strict=True)
        parts.append(Part(layout, sources, given, _order(sources[0], layout)))
    return tuple(parts)


def _order(matrix: Matrix, layout: Layout) -> NDArray[np.int32] | None:
    """The order of a matrix's columns on the device: floats have their own."""
    return matrix.order if isinstance(matrix, GroupedMatrix) and layout.form not in {"f32", "bf16"} else None


def _rows_within(whole: Tensor, part: Matrix) -> slice | None:
    """Rows of `whole` that `part` is a view of, None with memory of its own: a tied head, or a rank's shard of it."""
    if not isinstance(part, Tensor):
        return None
    if (part.format, part.shape[1:], part.data.strides) != (whole.format, whole.shape[1:], whole.data.strides):
        return None
    first, rest = divmod(part.data.ctypes.data - whole.data.ctypes.data, whole.data.strides[0])
    end = first + part.shape[0]
    return slice(first, end) if rest == 0 and 0 <= first < end <= whole.shape[0] else None
