"""The matrices that adapters change, and the memory of a slot (`kernels.adapter_entries`). Needs no GPU library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, MOST_PARTS, TILE, TILE_FIELDS, UNIT
from octavo_inference.models.adapter import MOST_TOKEN_ROWS, PLAIN_FIELDS
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Weights, part_tensors

_GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q", "k", "v", "attention_gate", "latent.q", "latent.q_down", "latent.kv_down"),
    "q_up": ("latent.q_up",),
    "o": ("o",),
    "state_inputs": tuple(f"state.inputs.{number}" for number in range(MOST_PARTS)),
    "state_output": ("state.output",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
    "shared_gate_up": ("experts.shared_gate", "experts.shared_up"),
    "shared_down": ("experts.shared_down",),
}
"""The matrices of a layer and their fields, of which it may have some."""
_OF_EXPERTS: dict[str, tuple[str, ...]] = {"experts": ("gate", "up"), "experts_down": ("down",)}
FIELDS = (
    *PLAIN_FIELDS,
    *(f"latent.{name}" for name in ("q", "q_down", "q_up", "kv_down", "k_up", "v_up")),
    *("state.inputs", "state.output"),
    *(f"experts.{name}" for name in ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")),
)
"""The fields of a layer that adapters may change."""


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A matrix [rows, columns] of `layer`, of fields that are stacked by rows; None for the outer ones.

    `by_column`: its inputs are ids, so `down` is stored column by column. The matrices of a layer's experts have one
    name, and follow each other. A slot has room for all of them if the `chosen` experts of a token have the largest
    rank together, and none for biases, which PEFT's adapters of experts do not have. `heads`: each has its rows of the
    matrix, and an entry. They share `down`, or with `transposed` the product is x @ matrix, and they share `up`.
    """

    layer: int | None
    name: str
    fields: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    by_column: bool = False
    chosen: int | None = None
    heads: int = 0
    transposed: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """Outputs of each part; of a head, if heads have rows of their own."""
        if not self.heads:
            return self.rows
        return (self.columns if self.transposed else self.rows[0] // self.heads,)

    @property
    def entries(self) -> int:
        """Entries in a slot, which follow each other."""
        return max(1, self.heads)

    @property
    def rank_elements(self) -> int:
        """Numbers for each rank of its parts."""
        return -(-(len(self.rows) * self.columns + sum(self.rows)) // (self.chosen or 1))

    @property
    def bias_elements(self) -> int:
        """Numbers for biases of its parts."""
        return 0 if self.chosen or self.heads else padded(sum(self.rows))


def padded(count: int) -> int:
    """Round up to whole units."""
    return -(-count // UNIT) * UNIT


def adapted_matrices(config: ModelConfig, weights: Weights) -> tuple[AdaptedMatrix, ...]:
    """All matrices of layers that adapters may change; then the embedding and lm_head."""
    layers, chosen = weights.layers[: config.layers], config.experts.chosen if config.experts else 1
    found = [matrix for number, layer in enumerate(layers) for matrix in _of_layer(number, layer, chosen)]
    if config.latent is not None:
        found += [matrix for number, layer in enumerate(layers) for matrix in _of_heads(config, number, layer)]
    (vocab, hidden), (own, _) = weights.embedding.shape, weights.lm_head.shape
    found.append(AdaptedMatrix(None, "embedding", ("embedding",), (hidden,), vocab, by_column=True))
    found.append(AdaptedMatrix(None, "lm_head", ("lm_head",), (own,), hidden))
    return tuple(found)


def slot_elements(matrices: Sequence[AdaptedMatrix], rank: int) -> int:
    """Numbers of the largest adapter of a rank."""
    return sum(padded(rank) * matrix.rank_elements + matrix.bias_elements for matrix in matrices)


def rank_for(matrices: Sequence[AdaptedMatrix], elements: int) -> int:
    """The smallest rank whose largest adapter has so many numbers."""
    biases = slot_elements(matrices, 0)
    return UNIT * -(-(elements - biases) // (slot_elements(matrices, UNIT) - biases))


def row_width(matrices: Sequence[AdaptedMatrix]) -> int:
    """Elements of a row of the embedding and of lm_head; 0 if neither is among them."""
    return next((sum(matrix.rows) for matrix in matrices if matrix.name == "embedding"), 0)


def token_rows_bytes(width: int, element: int) -> int:
    """Bytes of a slot's rows of tokens: those of embedding and head, each with an id, a bias, and their count."""
    return 2 * (MOST_TOKEN_ROWS * (width * element + 8) + 4)


def slots_bytes(matrices: Sequence[AdaptedMatrix], slots: int, rank: int, element: int) -> int:
    """Bytes of slots on the device, with the entries and tiles of their matrices; an element has `element` bytes."""
    tiles = sum(-(-count // TILE) for outputs in {matrix.outputs for matrix in matrices} for count in outputs)
    entries = sum(matrix.entries for matrix in matrices)
    rows = token_rows_bytes(row_width(matrices), element)
    return slots * (slot_elements(matrices, rank) * element + 4 * ENTRY * entries + rows) + 4 * TILE_FIELDS * tiles


def products_width(config: ModelConfig, rank: int) -> int:
    """Most products with `down` that a token has at a time: those of queries, keys, values, and the gate of outputs.

    State layers have one or several inputs, heads of latent attention a product each.
    """
    inputs = 0 if config.state is None else len(config.state.input_rows)
    heads = 0 if config.latent is None else config.heads
    return max(4 if config.attention_gate else 3, inputs, heads) * padded(rank)


def choice_width(config: ModelConfig, rank: int) -> int:
    """Most products with `down` of an expert that a choice has: those of gate and up."""
    return (2 if config.gated else 1) * padded(rank)


def choice_elements(config: ModelConfig) -> int:
    """Elements of a choice between the products of its expert: the changes of gate and up, then the output."""
    experts = config.experts
    return 0 if experts is None else max(config.hidden, (2 if config.gated else 1) * experts.intermediate)


def _of_heads(config: ModelConfig, number: int, layer: LayerWeights) -> list[AdaptedMatrix]:
    """The expansions of latents, which queries and sums of latents are multiplied with head by head."""
    weights = layer.latent
    if weights is None:
        return []
    (rows, columns), (value_rows, _) = weights.k_up.shape, weights.v_up.shape
    return [
        AdaptedMatrix(number, "k_up", ("latent.k_up",), (rows,), columns, heads=config.heads, transposed=True),
        AdaptedMatrix(number, "v_up", ("latent.v_up",), (value_rows,), columns, heads=config.heads),
    ]


def _of_layer(number: int, layer: LayerWeights, chosen: int) -> list[AdaptedMatrix]:
    shapes = {name: (t.shape[0], t.shape[1]) for name, t in part_tensors(layer) if len(t.shape) == 2}

    def matrix(name: str, fields: Sequence[str], chosen: int | None = None) -> list[AdaptedMatrix]:
        present = [field for field in fields if field in shapes]
        rows = tuple(shapes[field][0] for field in present)
        return (
            [AdaptedMatrix(number, name, tuple(present), rows, shapes[present[0]][1], chosen=chosen)] if present else []
        )

    found = [one for name, fields in _GROUPS.items() for one in matrix(name, fields)]
    experts = 0 if layer.experts is None else len(layer.experts.down)
    for name, kinds in _OF_EXPERTS.items():
        for expert in range(experts):
            found += matrix(name, [f"experts.{kind}.{expert}" for kind in kinds], chosen)
    return found
