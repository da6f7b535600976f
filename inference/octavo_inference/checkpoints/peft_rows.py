"""Whole rows of the embedding and of lm_head in a PEFT checkpoint: those of named tokens, and those that differ.

PEFT saves rows in two forms. `trainable_token_indices` names the tokens, and the tensor has their rows alone. A whole
matrix, of `modules_to_save` or of a vocabulary that was resized, has all rows: most are as in the model. Those behind
the model's rows are of tokens that the adapter adds, or of none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.peft_config import AdapterConfig
from octavo_inference.checkpoints.peft_tensors import AdapterTensor, FloatFormat, as_floats
from octavo_inference.checkpoints.peft_tokens import LastToken, beyond, last_token
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import MOST_TOKEN_ROWS, LowRank, TokenRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Matrix, Tensor, Weights, dequantize

Float32 = NDArray[np.float32]

# Tensors of a module, the first of which counts. PEFT saves those behind it, too, as they are in the model it trained.
_WHOLE = ("weight", "modules_to_save.weight", "token_adapter.weight", "original_module.weight")
_ROWS, _BEFORE = "token_adapter.trainable_tokens_delta", "token_adapter.trainable_tokens_original"
# A unit in the last place, as part of a number, and the least number of fp16 but 0.
_UNITS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_LEAST_HALF = 2.0**-24
# Elements that are compared at a time.
_PIECE = 1 << 22
# How far rows of a quantized matrix are from those it was made from: part of their length, by the format's first digit.
_ROUNDED = {"8": 0.02, "6": 0.05, "5": 0.1, "4": 0.2}
_ROUNDED_MOST = 0.4


@dataclass(frozen=True, slots=True)
class OuterMatrices:
    """The embedding and the head of a model, with which the rows of adapters are compared. They stay mapped files."""

    embedding: Tensor
    lm_head: Matrix
    head_bias: Tensor | None = None

    @classmethod
    def of(cls, weights: Weights) -> OuterMatrices:
        """Those of a model."""
        return cls(weights.embedding, weights.lm_head, weights.head_bias)


@dataclass(slots=True)
class WholeTensors:
    """The tensors of whole rows of one module, by the ends of their names. `module`: its name in the checkpoint."""

    module: str
    found: dict[str, AdapterTensor] = field(default_factory=dict)

    @property
    def matrix(self) -> AdapterTensor | None:
        """All rows."""
        return next((self.found[ending] for ending in _WHOLE if ending in self.found), None)

    @property
    def rows(self) -> AdapterTensor | None:
        """The rows of named tokens."""
        return self.found.get(_ROWS)

    def take(self, module: str, ending: str, raw: AdapterTensor) -> bool:
        """Take a tensor of the module, by its name; False for one of another kind."""
        if ending not in {*_WHOLE, _ROWS, _BEFORE}:
            return False
        self.module = module
        self.found[ending] = raw
        return True


def token_rows(
    folder: Path,
    config: ModelConfig,
    settings: AdapterConfig,
    base: OuterMatrices,
    tensors: tuple[WholeTensors, WholeTensors],
    low_rank: tuple[LowRank | None, LowRank | None],
) -> tuple[TokenRows | None, TokenRows | None]:
    """The rows that an adapter brings of embedding and head, from `tensors` of both, with its `low_rank` changes.

    Raises `ModelError` for rows that do not fit, or too many, and for added tokens without a row.
    """
    _require_tensors(folder, settings, tensors)
    last = last_token(folder)
    # Behind the model's tokens, rows of ids that no token has are those of padding.
    ids_end = sys.maxsize if last is None else max(last.id + 1, config.own_vocab)
    embedding, head = tensors
    matrices = [embedding.matrix, head.matrix]
    named = [_named(folder, config, settings, each, is_embedding=each is embedding) for each in tensors]
    if config.tied_embeddings:
        # The head shares rows of tokens with the embedding. Modules that are saved whole are apart in training.
        named[1] = named[1] or named[0]
        apart = any(each.module.rpartition(".")[2] in settings.saved for each in tensors) and not settings.tied
        if not apart:
            matrices = [matrices[0] or matrices[1], matrices[1] or matrices[0]]
    found: list[TokenRows | None] = []
    for number, (raw, rows, stored) in enumerate(zip(matrices, named, (base.embedding, base.lm_head), strict=True)):
        by_id = {} if raw is None else changed_rows(folder, raw, stored, ids_end)
        by_id |= {token: row for token, row in rows.items() if token < ids_end}
        _require_allowed(folder, config, tensors[number].module, max(by_id, default=0))
        if len(by_id) > MOST_TOKEN_ROWS:
            raise ModelError(_too_many(folder, tensors[number].module, len(by_id)))
        found.append(_finished(by_id, low_rank[number], base.head_bias if number else None, is_embedding=number == 0))
    _require_added(folder, config, last, found)
    return found[0], found[1]


def _require_allowed(folder: Path, config: ModelConfig, module: str, last: int) -> None:
    if last >= config.vocab:
        why = beyond(last, config.own_vocab, config.added_ids)
        raise ModelError(f"{folder}: {module} has a row of token {last}; {why}")


def _require_added(
    folder: Path, config: ModelConfig, last: LastToken | None, found: Sequence[TokenRows | None]
) -> None:
    """Each added token that the tokenizer has, or that can be chosen, has a row of the embedding."""
    own = config.own_vocab
    there, chosen = (set() if rows is None else set(rows.ids[rows.ids >= own].tolist()) for rows in found)
    needed = chosen | set(range(own, max(there, default=own)))
    if last is not None and last.id >= own:
        needed.add(last.id)
    if needed - there:
        token = min(needed - there)
        name = f" ({last.text!r})" if last is not None and last.id == token else ""
        raise ModelError(
            f"{folder}: token {token}{name} is not the model's, which has {own}, and the adapter has no row of the "
            "embedding for it: save the adapter with save_embedding_layers, or train the token"
        )


def _require_tensors(folder: Path, settings: AdapterConfig, tensors: tuple[WholeTensors, WholeTensors]) -> None:
    names = {each.module.rpartition(".")[2]: each for each in tensors}
    for name in sorted(settings.saved):
        if name not in names or names[name].matrix is None:
            raise ModelError(f"{folder}: modules_to_save has {name!r}, and no tensor {name}.weight is there")
    if settings.token_ids and not any(each.rows is not None for each in tensors):
        raise ModelError(
            f"{folder}: trainable_token_indices is set, and no tensor {_ROWS} of embedding or head is there"
        )


def _named(
    folder: Path, config: ModelConfig, settings: AdapterConfig, tensors: WholeTensors, *, is_embedding: bool
) -> dict[int, Float32]:
    """The rows of named tokens, by id."""
    raw = tensors.rows
    if raw is None:
        return {}
    ids = settings.token_ids_of(tensors.module, embedding=is_embedding)
    if raw.shape != (len(ids), config.hidden):
        raise ModelError(
            f"{folder}: tensor {raw.name} has shape {raw.shape}; trainable_token_indices has {len(ids)} ids, and the "
            f"model's rows have {config.hidden} elements"
        )
    return dict(zip(ids, raw.values(), strict=True))


def changed_rows(folder: Path, raw: AdapterTensor, base: Matrix, ids_end: int) -> dict[int, Float32]:
    """The rows of a whole matrix that are not those of `base`, by id; behind the end of `base`, all below `ids_end`.

    Raises `ModelError` if they are too many.
    """
    rows, hidden = base.shape
    if len(raw.shape) != 2 or raw.shape[1] != hidden:
        raise ModelError(
            f"{folder}: tensor {raw.name} has shape {raw.shape}; the model has {rows} rows of {hidden} elements: it "
            "was trained on another base model"
        )
    step = max(1, _PIECE // hidden)
    found: dict[int, Float32] = {}
    changed = 0
    for start in range(0, min(rows, raw.shape[0]), step):
        piece = raw.stored(start, min(start + step, rows))
        differs = ~same_rows(piece, raw.format, base.rows(start, start + len(piece)))
        at = np.flatnonzero(differs)
        changed += len(at)
        if changed <= MOST_TOKEN_ROWS:
            found |= zip((start + at).tolist(), as_floats(piece[at]), strict=True)
    base.release()
    behind = range(rows, min(raw.shape[0], ids_end))
    changed += len(behind)
    if behind and changed <= MOST_TOKEN_ROWS:
        found |= zip(behind, as_floats(raw.stored(behind.start, behind.stop)), strict=True)
    if changed > MOST_TOKEN_ROWS:
        raise ModelError(_too_many(folder, raw.name, changed))
    return found


def same_rows(given: NDArray[np.generic], format_: FloatFormat, base: Matrix) -> NDArray[np.bool_]:
    """Which rows [n] are those of `base`, both [n, columns]; `given` in `format_`, its bits for bf16.

    Floats of the same format must be equal. Of two formats, they may be a unit in the last place of the coarser one
    apart, since both may have been rounded from a third. Rows of a quantized matrix are the same within its rounding.
    """
    same: NDArray[np.bool_] = np.zeros(len(given), np.bool_)
    if isinstance(base, Tensor) and base.format == format_:
        same = np.asarray(np.all(given == base.data, axis=1))
    left = np.flatnonzero(~same)
    if not len(left):
        return same
    some, others = as_floats(given[left]), dequantize(base)[left]
    if isinstance(base, Tensor) and base.format in {"f32", "f16", "bf16"}:
        unit = 0.0 if base.format == format_ else max(_UNITS[base.format], _UNITS[format_])
        least = 0.0 if base.format == format_ or "f16" not in {base.format, format_} else _LEAST_HALF
        bound = np.maximum(np.abs(some), np.abs(others)) * np.float32(unit) + np.float32(least)
        same[left] = (np.abs(some - others) <= bound).all(axis=1)
    else:
        distance = np.linalg.norm(some - others, axis=1)
        same[left] = distance <= _rounding(base) * np.linalg.norm(some, axis=1)
    return same


def _rounding(base: Matrix) -> float:
    # Groups have the bits of their kind, or fewer if they are those of a GGUF file.
    kind = base.grouping.kind if isinstance(base, GroupedMatrix) and base.format[:1] not in "qi" else base.format
    if kind == "fp8":
        return _ROUNDED["6"]
    return _ROUNDED.get(next((c for c in kind if c.isdigit()), ""), _ROUNDED_MOST)


def _finished(
    by_id: Mapping[int, Float32], low_rank: LowRank | None, bias: Tensor | None, *, is_embedding: bool
) -> TokenRows | None:
    """Rows in the order of ids, with low-rank changes and the model's bias."""
    if not by_id:
        return None
    ids = np.array(sorted(by_id), np.int32)
    rows = np.stack([by_id[int(token)] for token in ids]).astype(np.float32)
    if low_rank is not None and is_embedding:
        rows += (low_rank.up @ low_rank.down[:, ids]).T
    elif low_rank is not None:
        rows += low_rank.up[ids] @ low_rank.down
    if bias is None:
        return TokenRows(ids, rows)
    own = dequantize(bias)
    return TokenRows(ids, rows, np.append(own, np.float32(0))[np.minimum(ids, len(own))])  # added tokens have none


def _too_many(folder: Path, name: str, count: int) -> str:
    return (
        f"{folder}: {name} differs from the model's in {count} rows, and {MOST_TOKEN_ROWS} are supported; it may be of "
        "another base model, or else train only new tokens (trainable_token_indices of PEFT)"
    )
