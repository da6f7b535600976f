"""Tiny random encoders of transformers, and decoders without a head: for comparisons of their hidden states."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.core.model_input import RowPooling

from .families import BLOCK, POSITIONS, VOCAB, WINDOW, save

torch = pytest.importorskip("torch", reason="compares with transformers")
transformers = pytest.importorskip("transformers", reason="compares with transformers")

LENGTHS = (70, 5, 33, 90)


@dataclass(frozen=True)
class Encoder:
    """`model` is the class, `config` that of its configuration; `changes`: what it sets."""

    model: str
    config: str
    changes: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """Random weights, large enough that every part of the model matters."""
        torch.manual_seed(0)
        torch.set_num_threads(1)
        base = {
            "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "max_position_embeddings": POSITIONS, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "num_labels": 1,
        }  # fmt: skip
        config = getattr(transformers, f"{self.config}Config")(**base | self.changes)
        model = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
                if "embed" in name and parameter.ndim > 1:
                    parameter.normal_(0, 0.5)
        return model


# 95 positions, of which RoBERTa uses two for padding.
ROBERTA = {"max_position_embeddings": 97, "pad_token_id": 1, "type_vocab_size": 1, "bos_token_id": 0}
GEMMA = {
    "head_dim": 32, "num_key_value_heads": 2, "sliding_window": WINDOW, "num_hidden_layers": 7,
    "query_pre_attn_scalar": 40, "use_bidirectional_attention": True,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
ENCODERS = {
    "bert": Encoder("BertModel", "Bert"),
    "bert-mlm": Encoder("BertForMaskedLM", "Bert", {"hidden_act": "gelu_new"}),
    "roberta": Encoder("RobertaModel", "Roberta", ROBERTA),
    "xlm-roberta": Encoder("XLMRobertaModel", "XLMRoberta", ROBERTA | {"hidden_act": "relu"}),
    "xlm-roberta-mlm": Encoder("XLMRobertaForMaskedLM", "XLMRoberta", ROBERTA),
    "modernbert": Encoder("ModernBertModel", "ModernBert", {"local_attention": WINDOW}),
    "modernbert-mlm": Encoder("ModernBertForMaskedLM", "ModernBert", {"local_attention": WINDOW, "norm_bias": True}),
    "embeddinggemma": Encoder("Gemma3TextModel", "Gemma3Text", GEMMA),
    "e5-mistral": Encoder("MistralModel", "Mistral", {**GROUPED, "sliding_window": WINDOW}),
    "qwen3-embedding": Encoder("Qwen3Model", "Qwen3", {**GROUPED, "head_dim": 32}),
    "qwen2": Encoder("Qwen2Model", "Qwen2", GROUPED),
    "llama": Encoder("LlamaModel", "Llama", GROUPED),
}
CROSS = {
    "bert": Encoder("BertForSequenceClassification", "Bert"),
    "roberta": Encoder("RobertaForSequenceClassification", "Roberta", ROBERTA),
    "bge-reranker": Encoder("XLMRobertaForSequenceClassification", "XLMRoberta", ROBERTA),
    "modernbert": Encoder("ModernBertForSequenceClassification", "ModernBert", {"local_attention": WINDOW}),
    "modernbert-mean": Encoder(
        "ModernBertForSequenceClassification",
        "ModernBert",
        {"local_attention": WINDOW, "classifier_pooling": "mean", "classifier_bias": True},
    ),
    "qwen3": Encoder("Qwen3ForSequenceClassification", "Qwen3", {**GROUPED, "head_dim": 32}),
}
# Between them: norms after the sum, positions behind that of padding, a first layer without norm, windows in both
# directions; heads of each kind.
IN_EVERY_RUN = frozenset({"bert", "xlm-roberta", "modernbert", "embeddinggemma", "e5-mistral"})
CROSS_IN_EVERY_RUN = frozenset(CROSS.keys() - {"roberta"})


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, VOCAB, length).tolist() for length in LENGTHS]


def states_of(model: Any, tokens: list[int], types: list[int] | None = None) -> NDArray[np.float32]:
    """The states after the last norm, by transformers."""
    body = getattr(model, model.base_model_prefix, model)
    options = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.inference_mode():
        found: NDArray[np.float32] = body(torch.tensor([tokens]), **options).last_hidden_state[0].numpy()
    return found


def whole_batch(tokens: list[list[int]], hidden: int, types: list[list[int]] | None = None) -> Batch:
    """All prompts in one step, each in three blocks, and a sum of one hidden state for each token."""
    lengths = [len(each) for each in tokens]
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    table = np.random.default_rng(1).permutation(24)[: 3 * len(tokens)].astype(np.int32).reshape(1, -1, 3)
    row = np.repeat(np.arange(len(tokens)), lengths)
    each = np.arange(ends[-1], dtype=np.int32)
    none = np.empty(0, np.int32)
    return Batch(
        tokens=np.concatenate(tokens).astype(np.int32),
        positions=positions,
        slots=(table[0][row, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32)[None],
        query_start=ends,
        seq_len=np.array(lengths, np.int32),
        block_table=table,
        sample=SampleRows.greedy(none, none),
        pooling=RowPooling(each, each, each + 1, np.ones_like(each), np.ones_like(each)),
        sums=np.zeros((ends[-1], hidden), np.float32),
        token_types=none if types is None else np.concatenate(types).astype(np.int32),
    )


def written(encoder: Encoder, folder: Path) -> Any:
    """The model, saved in a folder."""
    model = encoder.build()
    save(model, folder)
    return model


def save_words(folder: Path, *, typed: bool) -> None:
    """A tokenizer of the words w0, w1, ... that frames texts and pairs; with `typed`, second texts have their type."""
    tokenizer = Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    second = int(typed)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="w2 $A w2", pair=f"w2 $A w2 $B:{second} w2:{second}", special_tokens=[("w2", 2)]
    )
    # As in the files of many encoders; neither may have an effect.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(folder / "tokenizer.json"))


def words(length: int, seed: int = 0) -> str:
    """A text of so many words."""
    return " ".join(f"w{i}" for i in np.random.default_rng(seed).integers(3, VOCAB, length))


def ids_of(text: str) -> list[int]:
    """The tokens of its words alone."""
    return [int(word[1:]) for word in text.split()]
