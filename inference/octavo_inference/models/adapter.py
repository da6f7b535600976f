"""Low-rank adapters (LoRA): changes of some of a model's matrices, W + up @ down. numpy only.

Source: Hu et al., LoRA, 2021 (https://arxiv.org/abs/2106.09685).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import ModelError
from octavo_protocol.adapters import MAX_ADDED_TOKENS

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

MOST_TOKEN_ROWS = MAX_ADDED_TOKENS
"""Rows of the embedding, and of lm_head, that an adapter may bring. Memory for them is reserved on the device."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change up @ down of a matrix [rows, columns]: `down` [rank, columns], `up` [rows, rank] with the scale in it.

    `bias` [rows] is added to the product, None for none. With a rank of 0, and no columns, it changes the bias alone.
    """

    down: Float32
    up: Float32
    bias: Float32 | None = None

    @property
    def rank(self) -> int:
        """Rows of `down`."""
        return len(self.down)

    @property
    def merged(self) -> Float32:
        """The change as a matrix, [rows, columns]."""
        return self.up @ self.down


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Whole rows [n, hidden] of the embedding or of lm_head, of token `ids` [n] in ascending order.

    They take the place of the model's rows, with the low-rank changes of these in them. `bias` [n] is added to logits,
    None for none.
    """

    ids: Int32
    rows: Float32
    bias: Float32 | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """The changes of a model: of its layers' matrices, by layer and field as `models.weights.part_tensors` names them.

    `embedding` changes the embedding's transpose, [hidden, vocab]: up @ down[:, token] is added to a token's row.
    `embedding_rows` and `lm_head_rows` take the place of rows of the model, before any scale of embeddings or logits.
    `digest` identifies the numbers: prefix caches of two adapters are apart by it.
    """

    digest: str
    layers: tuple[Mapping[str, LowRank], ...]
    embedding: LowRank | None = None
    lm_head: LowRank | None = None
    embedding_rows: TokenRows | None = None
    lm_head_rows: TokenRows | None = None

    def parts(self) -> Iterator[tuple[str, LowRank]]:
        """All changes with their names, such as `q of layer 3`."""
        for number, layer in enumerate(self.layers):
            yield from ((f"{field} of layer {number}", part) for field, part in layer.items())
        for name, part in (("embedding", self.embedding), ("lm_head", self.lm_head)):
            if part is not None:
                yield name, part

    @property
    def ids_end(self) -> int:
        """One more than the largest id of which it brings a row of the embedding; 0 without any."""
        return 0 if self.embedding_rows is None else 1 + int(self.embedding_rows.ids[-1])

    @property
    def rank(self) -> int:
        """The largest rank of its parts."""
        return max((part.rank for _, part in self.parts()), default=0)


PLAIN_FIELDS = ("q", "k", "v", "o", "attention_gate", "gate", "up", "down")
"""The matrices of plain attention and a dense MLP."""


def require_supported(adapter: Adapter, fields: Sequence[str]) -> None:
    """Raise `ModelError` if an adapter changes a layer's matrix that is none of `fields`, or of a group of them."""
    for number, layer in enumerate(adapter.layers):
        for field in layer:
            if not any(field == each or field.startswith(f"{each}.") for each in fields):
                raise ModelError(
                    f"it changes {field} of layer {number}, which this backend cannot do; it can change "
                    f"{', '.join(fields)}, the embedding and lm_head"
                )
