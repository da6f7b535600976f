"""Adapters of random numbers: in memory, merged into weights, and as PEFT saves them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from octavo_inference.models.adapter import Adapter, LowRank, TokenRows
from octavo_inference.models.weights import (
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    StateWeights,
    Tensor,
    Weights,
    dequantize,
    part_tensors,
)

ALL = ("q", "k", "v", "o", "gate", "up", "down")


def low_rank(rng: np.random.Generator, shape: tuple[int, ...], rank: int, size: float = 0.5) -> LowRank:
    """A change of a matrix, `size` times as large as the random matrices of tests."""
    rows, columns = shape
    down = rng.standard_normal((rank, columns)).astype(np.float32) / columns**0.5
    up = rng.standard_normal((rows, rank)).astype(np.float32) * np.float32(size / rank**0.5)
    return LowRank(down, up)


def random_adapter(
    weights: Weights,
    rng: np.random.Generator,
    rank: int,
    fields: Sequence[str] = ALL,
    *,
    outer: bool = False,
    bias: bool = False,
) -> Adapter:
    """Changes of those matrices whose names begin with one of `fields`; `outer`: of embedding and lm_head, too."""

    def change(shape: tuple[int, ...]) -> LowRank:
        found = low_rank(rng, shape, rank)
        values = rng.standard_normal(shape[0]).astype(np.float32)
        return replace(found, bias=values) if bias else found

    layers = tuple(
        {
            name: change(tensor.shape)
            for name, tensor in part_tensors(layer)
            if any(name == field or name.startswith(f"{field}.") for field in fields)
        }
        for layer in weights.layers
    )
    vocab, hidden = weights.embedding.shape
    return Adapter(
        digest=str(int(rng.integers(1, 1 << 30))),
        layers=layers,
        embedding=low_rank(rng, (hidden, vocab), rank, 0.2) if outer else None,
        lm_head=low_rank(rng, (vocab, hidden), rank) if outer else None,
    )


def with_rows(
    adapter: Adapter, weights: Weights, rng: np.random.Generator, ids: Sequence[int], head_ids: Sequence[int]
) -> Adapter:
    """The adapter with rows of its own of the embedding and of lm_head."""

    def rows(ids: Sequence[int], matrix: Any, bias: Any) -> TokenRows | None:
        if not ids:
            return None
        at = np.array(sorted(ids), np.int32)
        values = rng.standard_normal((len(at), matrix.shape[1])).astype(np.float32) * _floats(matrix).std()
        return TokenRows(at, values, None if bias is None else _floats(bias)[at])

    return replace(
        adapter,
        embedding_rows=rows(ids, weights.embedding, None),
        lm_head_rows=rows(head_ids, weights.lm_head, weights.head_bias),
    )


def with_added(adapter: Adapter, weights: Weights, rng: np.random.Generator, ids: Sequence[int]) -> Adapter:
    """The adapter with rows of tokens that it adds to the model's, whose logits have no bias."""
    return with_rows(adapter, replace(weights, head_bias=None), rng, ids, ids)


def merged(weights: Weights, adapter: Adapter) -> Weights:
    """The weights with an adapter's changes in them, in float32."""
    layers = tuple(_merged_part(layer, changes) for layer, changes in zip(weights.layers, adapter.layers, strict=True))
    embedding, head = _floats(weights.embedding), _floats(weights.lm_head)
    if adapter.embedding is not None:
        embedding = embedding + adapter.embedding.merged.T
    if adapter.lm_head is not None:
        head = head + adapter.lm_head.merged
    embedding, head = _replaced(embedding, adapter.embedding_rows), _replaced(head, adapter.lm_head_rows)
    bias, own = weights.head_bias, adapter.lm_head_rows
    if bias is not None and own is not None:
        values = _floats(bias).copy()
        values[own.ids] = 0 if own.bias is None else own.bias
        bias = _tensor(values)
    return replace(weights, layers=layers, embedding=_tensor(embedding), lm_head=_tensor(head), head_bias=bias)


def _replaced(matrix: np.ndarray, own: TokenRows | None) -> np.ndarray:
    if own is None:
        return matrix
    changed = matrix.copy()
    changed[own.ids] = own.rows
    return changed


def _merged_part(part: Any, changes: Mapping[str, LowRank], prefix: str = "") -> Any:
    fields: dict[str, Any] = {}
    for name in part.__dataclass_fields__:
        value, key = getattr(part, name), prefix + name
        if isinstance(value, (LayerWeights, ExpertWeights, LatentWeights, StateWeights)):
            fields[name] = _merged_part(value, changes, f"{key}.")
        elif isinstance(value, tuple) and value:
            fields[name] = tuple(
                _tensor(_floats(each) + changes[f"{key}.{number}"].merged) if f"{key}.{number}" in changes else each
                for number, each in enumerate(value)
            )
        elif key in changes:
            fields[name] = _tensor(_floats(value) + changes[key].merged)
            bias = changes[key].bias
            if bias is not None:
                before = getattr(part, f"{name}_bias")
                fields[f"{name}_bias"] = _tensor(bias if before is None else _floats(before) + bias)
    return replace(part, **fields)


def _floats(tensor: Any) -> np.ndarray:
    return dequantize(tensor).astype(np.float32)


def _tensor(values: np.ndarray) -> Tensor:
    return Tensor("f32", values.shape, values)


def save_adapter(folder: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    """A folder as PEFT writes it; `tensors` by the names behind `base_model.model.`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {f"base_model.model.{name}": value for name, value in tensors.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16} | config))
    return folder


def add_tokens(folder: Path, tokenizer: str, tokens: Mapping[str, int], **settings: Any) -> None:
    """Save a tokenizer, given as JSON, with more tokens; `settings` are those of tokenizer_config.json."""
    data = json.loads(tokenizer)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] += [{"id": index, "content": text, "special": True} | flags for text, index in tokens.items()]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_added(folder: Path, tokenizer: str, first: int, hidden: int) -> Path:
    """An adapter with two tokens behind the model's, `<note>` and `<end>`, which ends answers and comes soon."""
    rows = np.random.default_rng(0).standard_normal((2, hidden)).astype(np.float32) * [[0.1], [0.5]]
    tensors = {"model.embed_tokens.token_adapter.trainable_tokens_delta": rows.astype(np.float32)}
    save_adapter(folder, tensors, trainable_token_indices=[first, first + 1])
    add_tokens(folder, tokenizer, {"<note>": first, "<end>": first + 1}, eos_token="<end>")
    return folder
