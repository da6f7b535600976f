"""Whole rows of the embedding and of lm_head in adapters: in each form of PEFT, compared with the model's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.adapters import save_adapter

from octavo_inference.checkpoints.peft import read_adapter
from octavo_inference.checkpoints.peft_rows import OuterMatrices, same_rows
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import MOST_TOKEN_ROWS, Adapter, TokenRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups
from octavo_inference.models.weights import Format, Matrix, Tensor, bf16_bits, bf16_values

VOCAB, HIDDEN = 700, 32
TIED = ModelConfig(
    architecture="llama", layers=1, hidden=HIDDEN, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=VOCAB,
    max_positions=64, rope_theta=10_000.0, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(0,),
)  # fmt: skip
APART = replace(TIED, tied_embeddings=False)
EMBEDDING, HEAD = (np.random.default_rng(n).standard_normal((VOCAB, HIDDEN)).astype(np.float32) for n in (1, 2))
ROWS = np.random.default_rng(3).standard_normal((4, HIDDEN)).astype(np.float32)
Q = "model.layers.0.self_attn.q_proj"
DELTA = "token_adapter.trainable_tokens_delta"
Floats = np.ndarray
Tensors = Mapping[str, Floats]


def with_pair(tensors: Tensors) -> Tensors:
    return {f"{Q}.lora_A.weight": np.ones((8, 32), np.float32), f"{Q}.lora_B.weight": np.ones((32, 8), np.float32)} | (
        dict(tensors)
    )


def outer(config: ModelConfig, bias: Floats | None = None) -> OuterMatrices:
    embedding = Tensor("f32", EMBEDDING.shape, EMBEDDING)
    head = embedding if config.tied_embeddings else Tensor("f32", HEAD.shape, HEAD)
    return OuterMatrices(embedding, head, None if bias is None else Tensor("f32", bias.shape, bias))


def read(
    tmp_path: Path, tensors: Tensors, model: ModelConfig = APART, base: OuterMatrices | None = None, **config: Any
) -> Adapter:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    folder = save_adapter(tmp_path / "adapter", tensors, **config)
    return read_adapter(folder, model, ({},) * model.layers, base or outer(model), tmp_path / "model", 64)


def changed(matrix: Floats, ids: list[int]) -> Floats:
    found = matrix.copy()
    found[ids] = ROWS[: len(ids)]
    return found


def check(found: TokenRows | None, ids: list[int], rows: Floats) -> None:
    assert found is not None
    assert found.ids.tolist() == ids
    np.testing.assert_array_equal(found.rows, rows)


@pytest.mark.parametrize("ending", ["weight", "modules_to_save.weight", "modules_to_save.default.weight"])
def test_a_whole_matrix_has_the_rows_that_differ(tmp_path: Path, ending: str) -> None:
    """By the names of each of PEFT's versions, beside the matrix as it was before training."""
    tensors = {
        f"model.embed_tokens.{ending}": changed(EMBEDDING, [7, 600]),
        "model.embed_tokens.original_module.weight": EMBEDDING,
        f"lm_head.{ending}": changed(HEAD, [0]),
    }
    found = read(tmp_path, with_pair(tensors), modules_to_save=["embed_tokens", "model.lm_head"])
    check(found.embedding_rows, [7, 600], ROWS[:2])
    check(found.lm_head_rows, [0], ROWS[:1])
    assert found.rank == 8


def test_a_matrix_as_the_models_has_no_rows(tmp_path: Path) -> None:
    found = read(tmp_path, with_pair({"lm_head.weight": HEAD, "model.embed_tokens.base_layer.weight": EMBEDDING}))
    assert found.embedding_rows is None
    assert found.lm_head_rows is None


def test_a_vocabulary_without_the_models_padding(tmp_path: Path) -> None:
    """As `resize_token_embeddings(len(tokenizer))` makes it."""
    found = read(tmp_path, with_pair({"lm_head.weight": changed(HEAD, [688, 689])[:690]}))
    check(found.lm_head_rows, [688, 689], ROWS[:2])


def test_low_rank_changes_of_a_vocabulary_without_padding(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    low = {
        "model.embed_tokens.lora_embedding_A": (8, 690),
        "model.embed_tokens.lora_embedding_B": (HIDDEN, 8),
        "lm_head.lora_A.weight": (8, HIDDEN),
        "lm_head.lora_B.weight": (690, 8),
    }
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in low.items()}
    with pytest.raises(ModelError, match="it was trained on another base model"):
        read(tmp_path, tensors)
    whole = {
        "model.embed_tokens.base_layer.weight": EMBEDDING[:690],
        "lm_head.base_layer.weight": HEAD[:690],
    }
    found = read(tmp_path, tensors | whole)
    assert found.embedding is not None
    assert found.lm_head is not None
    np.testing.assert_array_equal(found.embedding.down[:, :690], tensors["model.embed_tokens.lora_embedding_A"])
    np.testing.assert_array_equal(found.lm_head.up[:690], 2 * tensors["lm_head.lora_B.weight"])
    assert not found.embedding.down[:, 690:].any()
    assert not found.lm_head.up[690:].any()


def test_named_tokens_in_their_own_order(tmp_path: Path) -> None:
    tensors = with_pair({f"model.embed_tokens.{DELTA}": ROWS[:3]})
    found = read(tmp_path, tensors, trainable_token_indices=[9, 3, 699])
    check(found.embedding_rows, [3, 9, 699], ROWS[[1, 0, 2]])
    assert found.lm_head_rows is None


def test_named_tokens_of_both_matrices(tmp_path: Path) -> None:
    tensors = with_pair({f"model.embed_tokens.{DELTA}": ROWS[:1], f"lm_head.{DELTA}": ROWS[1:3]})
    found = read(tmp_path, tensors, trainable_token_indices={"embed_tokens": [5], "lm_head": [4, 5]})
    check(found.embedding_rows, [5], ROWS[:1])
    check(found.lm_head_rows, [4, 5], ROWS[1:3])


def test_named_tokens_over_a_resized_matrix(tmp_path: Path) -> None:
    """PEFT then saves the matrix, too, as it was before training, by several names."""
    before = changed(EMBEDDING, [3, 4])
    names = ("original_module", "token_adapter.base_layer")
    tensors = {f"model.embed_tokens.{name}.weight": before for name in names}
    tensors |= {f"model.embed_tokens.{DELTA}": ROWS[3:], "lm_head.weight": changed(HEAD, [4])}
    found = read(tmp_path, with_pair(tensors), trainable_token_indices=[4])
    check(found.embedding_rows, [3, 4], ROWS[[0, 3]])
    check(found.lm_head_rows, [4], ROWS[:1])


def test_tied_matrices_share_rows_of_named_tokens(tmp_path: Path) -> None:
    found = read(tmp_path, with_pair({f"model.embed_tokens.{DELTA}": ROWS[:1]}), TIED, trainable_token_indices=[4])
    check(found.embedding_rows, [4], ROWS[:1])
    check(found.lm_head_rows, [4], ROWS[:1])


@pytest.mark.parametrize(
    ("config", "shared"),
    [
        ({}, True),
        ({"modules_to_save": ["embed_tokens"]}, False),
        ({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, True),
    ],
    ids=["resized", "trained apart", "trained together"],
)
def test_tied_matrices_share_whole_matrices_unless_trained_apart(
    tmp_path: Path, config: dict[str, Any], shared: bool
) -> None:
    found = read(tmp_path, with_pair({"model.embed_tokens.weight": changed(EMBEDDING, [4])}), TIED, **config)
    check(found.embedding_rows, [4], ROWS[:1])
    assert (found.lm_head_rows is not None) == shared


def test_rows_have_the_low_rank_changes_and_the_bias(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    low = {
        "model.embed_tokens.lora_embedding_A": (8, VOCAB),
        "model.embed_tokens.lora_embedding_B": (HIDDEN, 8),
        "lm_head.lora_A.weight": (8, HIDDEN),
        "lm_head.lora_B.weight": (VOCAB, 8),
    }
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in low.items()}
    a, b, down, up = tensors.values()
    whole = {
        "model.embed_tokens.base_layer.weight": changed(EMBEDDING, [7]),
        "lm_head.base_layer.weight": changed(HEAD, [8]),
    }
    bias = np.arange(VOCAB, dtype=np.float32)
    found = read(tmp_path, tensors | whole, base=outer(APART, bias))
    assert found.embedding_rows is not None
    assert found.lm_head_rows is not None
    np.testing.assert_allclose(found.embedding_rows.rows[0], ROWS[0] + 2 * b @ a[:, 7], atol=1e-4)
    np.testing.assert_allclose(found.lm_head_rows.rows[0], ROWS[0] + 2 * up[8] @ down, atol=1e-4)
    assert found.lm_head_rows.bias is not None
    assert found.lm_head_rows.bias.tolist() == [8.0]
    assert found.embedding_rows.bias is None


def test_rows_alone_are_an_adapter(tmp_path: Path) -> None:
    found = read(tmp_path, {f"model.embed_tokens.{DELTA}": ROWS[:1]}, trainable_token_indices=[4])
    assert found.rank == 0
    assert found.layers == ({},)


LOST = np.full((1, HIDDEN), np.inf, np.float32)


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({}, {"modules_to_save": ["norm"]}, "modules_to_save has 'norm'; whole modules are supported of the embedding"),
        ({}, {"modules_to_save": ["lm_head"]}, "modules_to_save has 'lm_head', and no tensor lm_head.weight is there"),
        ({}, {"trainable_token_indices": [1]}, "is set, and no tensor token_adapter.trainable_tokens_delta"),
        ({}, {"trainable_token_indices": {"q_proj": [1]}}, "indices of q_proj are of neither the embedding nor"),
        ({}, {"trainable_token_indices": [3, 3]}, "trainable_token_indices has an id twice"),
        ({}, {"trainable_token_indices": [-1]}, "or one below 0"),
        ({}, {"trainable_token_indices": list(range(600))}, "has 600 ids; up to 512 are supported"),
        ({}, {"trainable_token_indices": ["a"]}, "not the configuration of an adapter"),
        ({f"lm_head.{DELTA}": ROWS[:2]}, {"trainable_token_indices": {"lm_head": [1]}}, "has shape \\(2, 32\\);"),
        ({f"lm_head.{DELTA}": ROWS[:1, :8]}, {"trainable_token_indices": {"lm_head": [1]}}, "rows have 32 elements"),
        (
            {f"lm_head.{DELTA}": ROWS[:1]},
            {"trainable_token_indices": {"lm_head": [VOCAB]}},
            "lm_head has a row of token 700; the served model has ids below 700: set max_added_tokens to 1, or train",
        ),
        (
            {f"lm_head.{DELTA}": LOST},
            {"trainable_token_indices": {"lm_head": [1]}},
            "a row of lm_head has numbers that",
        ),
        (
            {"lm_head.weight": HEAD + 1},
            {},
            "lm_head.weight differs from the model's in 700 rows, and 512 are supported",
        ),
        ({"lm_head.weight": HEAD[:, :16]}, {}, "has shape \\(700, 16\\); the model has 700 rows of 32"),
        ({"lm_head.weight": HEAD[0]}, {}, "has shape \\(32,\\); the model has 700 rows"),
        (
            {"lm_head.weight": np.concatenate([HEAD, ROWS[:3]])},
            {},
            "has a row of token 702; .* set max_added_tokens to 3",
        ),
        ({"lm_head.weight": HEAD.astype(np.int32)}, {}, "has dtype I32"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, tensors: Tensors, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, with_pair(tensors), **config)


LARGER = replace(APART, vocab=VOCAB + 3, added_ids=3)


def with_tokenizer(folder: Path, tokens: Mapping[str, int], **settings: str) -> None:
    folder.mkdir(exist_ok=True)
    added = [{"id": index, "content": text, "special": True} for text, index in tokens.items()]
    file = {"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def resized(rows: int) -> Tensors:
    """Both matrices with a row more for each new token."""
    return {"model.embed_tokens.weight": np.concatenate([EMBEDDING, ROWS[:rows]])} | {
        "lm_head.weight": np.concatenate([HEAD, ROWS[1 : 1 + rows]])
    }


def test_a_vocabulary_that_was_made_larger(tmp_path: Path) -> None:
    bias = np.arange(VOCAB, dtype=np.float32)
    found = read(tmp_path, with_pair(resized(2)), LARGER, outer(APART, bias))
    check(found.embedding_rows, [700, 701], ROWS[:2])
    check(found.lm_head_rows, [700, 701], ROWS[1:3])
    assert found.ids_end == 702
    assert found.lm_head_rows is not None
    assert found.lm_head_rows.bias is not None
    assert found.lm_head_rows.bias.tolist() == [0, 0], "the model's head has none for them"


def test_named_tokens_behind_the_models(tmp_path: Path) -> None:
    tied = replace(TIED, vocab=VOCAB + 3, added_ids=3)
    tensors = with_pair({f"model.embed_tokens.{DELTA}": ROWS[:3]})
    found = read(tmp_path, tensors, tied, outer(TIED), trainable_token_indices=[701, 5, 700])
    check(found.embedding_rows, [5, 700, 701], ROWS[[1, 2, 0]])
    check(found.lm_head_rows, [5, 700, 701], ROWS[[1, 2, 0]])


def test_low_rank_changes_of_a_larger_vocabulary(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    low = {
        "model.embed_tokens.lora_embedding_A": (8, 702),
        "model.embed_tokens.lora_embedding_B": (HIDDEN, 8),
        "lm_head.lora_A.weight": (8, HIDDEN),
        "lm_head.lora_B.weight": (702, 8),
    }
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in low.items()}
    a, b, down, up = tensors.values()
    whole = {name.replace(".weight", ".base_layer.weight"): value for name, value in resized(2).items()}
    found = read(tmp_path, tensors | whole, LARGER, outer(APART))
    assert found.embedding is not None
    assert found.lm_head is not None
    assert (found.embedding.down.shape, found.lm_head.up.shape) == ((8, 703), (703, 8))
    assert found.embedding_rows is not None
    assert found.lm_head_rows is not None
    np.testing.assert_allclose(found.embedding_rows.rows, ROWS[:2] + (2 * b @ a[:, 700:]).T, atol=1e-4)
    np.testing.assert_allclose(found.lm_head_rows.rows, ROWS[1:3] + 2 * up[700:] @ down, atol=1e-4)
    # Of a vocabulary as the model has it, in a server with room for more.
    plain = {name: value[:, :VOCAB] if value.shape[1] == 702 else value[:VOCAB] for name, value in tensors.items()}
    found = read(tmp_path, plain, LARGER, outer(APART))
    assert found.embedding is not None
    assert not found.embedding.down[:, VOCAB:].any()


@pytest.mark.parametrize("allowed", [0, 3])
def test_rows_for_padding_are_dropped(tmp_path: Path, allowed: int) -> None:
    """Those of a token for padding alone, and of ids that no token has."""
    config = replace(APART, vocab=VOCAB + allowed, added_ids=allowed)
    with_tokenizer(tmp_path / "adapter", {"<pad>": 700}, pad_token="<pad>", eos_token="a")
    found = read(tmp_path, with_pair(resized(2)), config, outer(APART))
    assert (found.embedding_rows, found.lm_head_rows, found.ids_end) == (None, None, 0)
    named = with_pair({f"model.embed_tokens.{DELTA}": ROWS[:2]})
    check(read(tmp_path, named, config, outer(APART), trainable_token_indices=[3, 700]).embedding_rows, [3], ROWS[:1])


def test_tokens_behind_padding_stay(tmp_path: Path) -> None:
    with_tokenizer(tmp_path / "adapter", {"<pad>": 700, "<new>": 701}, pad_token="<pad>")
    found = read(tmp_path, with_pair(resized(3)), LARGER, outer(APART))
    check(found.lm_head_rows, [700, 701], ROWS[1:3])


def test_a_token_without_a_row_is_refused(tmp_path: Path) -> None:
    with_tokenizer(tmp_path / "adapter", {"<new>": 701, "<end>": 702}, pad_token="<end>", eos_token="<end>")
    with pytest.raises(ModelError, match=r"token 702 \('<end>'\) is not the model's, which has 700, and the adapter"):
        read(tmp_path, with_pair(resized(2)), LARGER, outer(APART))
    read(tmp_path, with_pair(resized(3)), LARGER, outer(APART))
    (tmp_path / "adapter" / "tokenizer.json").unlink()
    one = {f"lm_head.{DELTA}": ROWS[:1]}
    with pytest.raises(ModelError, match="token 701 is not the model's"):
        read(tmp_path, with_pair(one), LARGER, outer(APART), trainable_token_indices={"lm_head": [701]})
    gap = {f"model.embed_tokens.{DELTA}": ROWS[:1]}
    with pytest.raises(ModelError, match="token 700 is not the model's"):
        read(tmp_path, with_pair(gap), LARGER, outer(APART), trainable_token_indices=[701])


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("{", "not a tokenizer"),
        ('{"added_tokens": [{"id": "b", "content": "a"}]}', "not a tokenizer"),
        ('{"added_tokens": {"a": 1e30}}', "not a tokenizer"),
        ('{"added_tokens": [{"id": 100000000000, "content": "a"}]}', "token 100000000000 .* is not the model's"),
        ('{"added_tokens": [' + "0," * (1 << 22) + "0]}", "added tokens of 8388611 bytes; up to 8388608 are possible"),
    ],
    ids=["no JSON", "an id that is none", "no list", "a large id", "a large list"],
)
def test_a_damaged_tokenizer_is_one_sentence(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "tokenizer.json").write_text(file)
    with pytest.raises(ModelError, match=words):
        read(tmp_path, with_pair(resized(2)), LARGER, outer(APART))


def test_a_tokenizer_without_added_tokens_has_none_behind_the_models(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    assert read(tmp_path, with_pair(resized(2)), APART).lm_head_rows is None


def test_both_forms_together_are_counted(tmp_path: Path) -> None:
    many = HEAD.copy()
    many[:500] += 1
    ids = list(range(500, 520))
    tensors = {"lm_head.token_adapter.base_layer.weight": many, f"lm_head.{DELTA}": HEAD[500:520]}
    with pytest.raises(ModelError, match=f"differs from the model's in 520 rows, and {MOST_TOKEN_ROWS}"):
        read(tmp_path, with_pair(tensors), trainable_token_indices={"lm_head": ids})


def test_a_file_of_bfloat16(tmp_path: Path) -> None:
    """With a base in another format: rows that are equal up to rounding are the model's."""
    read(tmp_path, with_pair({}))
    tensors = {name: torch.from_numpy(values.copy()) for name, values in with_pair({}).items()}
    tensors["lm_head.weight"] = torch.from_numpy(changed(HEAD, [11])).bfloat16()
    save_file({f"base_model.model.{n}": t for n, t in tensors.items()}, tmp_path / "adapter/adapter_model.safetensors")
    found = read_adapter(tmp_path / "adapter", APART, ({},), outer(APART), tmp_path / "model", 64)
    check(found.lm_head_rows, [11], torch.from_numpy(ROWS[:1]).bfloat16().float().numpy())


def stored(values: Floats, format_: str) -> np.ndarray:
    return {"f32": values, "f16": values.astype(np.float16), "bf16": bf16_bits(np.ascontiguousarray(values))}[format_]


def q8_0(values: Floats) -> Matrix:
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    whole = np.rint(np.divide(blocks, scale, where=scale > 0, out=np.zeros_like(blocks), dtype=np.float32))
    data = np.concatenate([scale.view(np.uint8), whole.astype(np.int8).view(np.uint8)], axis=1)
    return Tensor("q8_0", values.shape, data.reshape(len(values), -1))


def int4(values: Floats) -> Matrix:
    scale = np.abs(values).reshape(len(values), -1, 16).max(2) / 7
    steps = np.where(scale > 0, scale, 1).repeat(16, 1)
    groups = Groups((np.rint(values / steps) + 8).astype(np.uint8), scale.astype(np.float32))
    return GroupedMatrix("GPTQ", values.shape, Grouping("int4", 16), groups.rows)


BASES: dict[str, Callable[[Floats], Matrix]] = {
    "q8_0": q8_0,
    "int4": int4,
    **{name: lambda v, f=name: Tensor(f, v.shape, stored(v, f)) for name in ("f32", "f16", "bf16")},
}
FORMATS: tuple[Format, ...] = ("f32", "f16", "bf16")


@given(
    st.sampled_from(sorted(BASES)),
    st.sampled_from(FORMATS),
    st.sets(st.integers(0, 19)),
    st.sampled_from([1e-3, 0.05, 1.0, 30.0]),
    st.integers(0, 1 << 30),
)
def test_rows_are_the_same_if_nobody_changed_them(
    base: str, format_: Format, trained: set[int], size: float, seed: int
) -> None:
    """Whatever the two formats are, and however large the numbers; padding rows of zeros are the same, too."""
    rng = np.random.default_rng(seed)
    original = (size * rng.standard_normal((20, 64))).astype(np.float32)
    original[rng.integers(20)] = 0
    after = original.copy()
    at = sorted(trained)
    after[at] = size * rng.standard_normal((len(at), 64))
    same = same_rows(stored(after, format_), format_, BASES[base](original))
    assert set(np.flatnonzero(~same).tolist()) == trained


@given(st.sampled_from(["f32", "bf16"]), st.integers(0, 63), st.integers(1, 1 << 30))
def test_a_single_bit_of_the_models_own_format_counts(format_: Format, column: int, seed: int) -> None:
    bits = bf16_bits(np.random.default_rng(seed).standard_normal((2, 64)).astype(np.float32))
    other = bits.copy()
    other[1, column] ^= 1
    before, after = (bits, other) if format_ == "bf16" else (bf16_values(bits), bf16_values(other))
    assert same_rows(after, format_, Tensor(format_, (2, 64), before)).tolist() == [True, False]
