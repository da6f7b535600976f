"""The matrices that adapters change, and the memory of a slot (`kernels.adapter_entries`). Needs no GPU library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, TILE, TILE_FIELDS, UNIT
from octavo_inference.models.adapter import MOST_TOKEN_ROWS
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Weights

_OUTPUT = {"o": ("o",)}
_ATTENTION = {"qkv": ("q", "k", "v", "attention_gate"), **_OUTPUT}
_GATED, _NOT_GATED = ({"gate_up": names, "down": ("down",)} for names in (("gate", "up"), ("up",)))


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A matrix [rows, columns] of `layer`, of fields that are stacked by rows; None for the outer ones.

    `by_column`: its inputs are ids, so `down` is stored column by column.
    """

    layer: int | None
    name: str
    fields: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    by_column: bool = False

    def elements(self, rank: int) -> int:
        """Numbers of a change whose parts all have a rank, and a bias."""
        ranks, rows = padded_rank(rank), sum(self.rows)
        return ranks * len(self.rows) * self.columns + rows * ranks + -(-rows // UNIT) * UNIT


def padded_rank(rank: int) -> int:
    """Round up to whole units."""
    return -(-rank // UNIT) * UNIT


def adapted_matrices(config: ModelConfig, weights: Weights) -> tuple[AdaptedMatrix, ...]:
    """All matrices of plain attention, outputs of latent attention, dense MLPs; then the embedding and lm_head."""
    layers = weights.layers[: config.layers]
    found = [matrix for number, layer in enumerate(layers) for matrix in _of_layer(config, number, layer)]
    (vocab, hidden), (own, _) = weights.embedding.shape, weights.lm_head.shape
    found.append(AdaptedMatrix(None, "embedding", ("embedding",), (hidden,), vocab, by_column=True))
    found.append(AdaptedMatrix(None, "lm_head", ("lm_head",), (own,), hidden))
    return tuple(found)


def slot_elements(matrices: Sequence[AdaptedMatrix], rank: int) -> int:
    """Numbers of the largest adapter of a rank."""
    return sum(matrix.elements(rank) for matrix in matrices)


def row_width(matrices: Sequence[AdaptedMatrix]) -> int:
    """Elements of a row of the embedding and of lm_head."""
    return next(sum(matrix.rows) for matrix in matrices if matrix.name == "embedding")


def token_rows_bytes(width: int, element: int) -> int:
    """Bytes of a slot's rows of tokens: those of embedding and head, each with an id, a bias, and their count."""
    return 2 * (MOST_TOKEN_ROWS * (width * element + 8) + 4)


def slots_bytes(matrices: Sequence[AdaptedMatrix], slots: int, rank: int, element: int) -> int:
    """Bytes of slots on the device, with the entries and tiles of their matrices; an element has `element` bytes."""
    tiles = sum(-(-count // TILE) for rows in {matrix.rows for matrix in matrices} for count in rows)
    rows = token_rows_bytes(row_width(matrices), element)
    return (
        slots * (slot_elements(matrices, rank) * element + 4 * ENTRY * len(matrices) + rows) + 4 * TILE_FIELDS * tiles
    )


def products_width(config: ModelConfig, rank: int) -> int:
    """Most products with `down` that a token has at a time: those of queries, keys, values, and the gate of outputs."""
    return (4 if config.attention_gate else 3) * padded_rank(rank)


def _of_layer(config: ModelConfig, number: int, layer: LayerWeights) -> list[AdaptedMatrix]:
    groups = dict(_ATTENTION if layer.latent is None else _OUTPUT)
    if layer.experts is None:
        groups |= _GATED if config.gated else _NOT_GATED
    found = []
    for name, fields in groups.items():
        present = {field: matrix for field in fields if (matrix := getattr(layer, field)) is not None}
        if present:
            shapes = [matrix.shape for matrix in present.values()]
            rows = tuple(shape[0] for shape in shapes)
            found.append(AdaptedMatrix(number, name, tuple(present), rows, shapes[0][1]))
    return found
