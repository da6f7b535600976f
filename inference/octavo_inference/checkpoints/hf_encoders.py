"""The families of encoders, and of decoders without a head of the vocabulary, in safetensors checkpoints: a row each.

They give embeddings, or score pairs of texts: classes that end with ForSequenceClassification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo_inference.checkpoints import hf_names as names
from octavo_inference.checkpoints.hf_families import FAMILIES as DECODERS
from octavo_inference.checkpoints.hf_families import Fields, HfFamily
from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_windows import windows
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.layers import LayerParts


def _bert(settings: HfSettings) -> Fields:
    for key in ("is_decoder", "add_cross_attention"):
        settings.refuse(key)
    settings.refuse("position_embedding_type", "absolute")
    positions = settings.count("max_position_embeddings")
    return {
        "layer_norm": True, "gated": False, "input_norms": False, "post_residual_norms": True, "embedding_norm": True,
        "rotated": (False,) * settings.layers(), "bidirectional": True,
        "norm_eps": settings.number("rms_norm_eps", 1e-12), "learned_positions": positions, "max_positions": positions,
        "pooling": "mean",
    }  # fmt: skip


def _roberta(settings: HfSettings) -> Fields:
    positions = settings.count("max_position_embeddings") - first_position(settings)
    return {**_bert(settings), "learned_positions": positions, "max_positions": positions}


def first_position(settings: HfSettings) -> int:
    """RoBERTa: the row of the first token's position, behind that of padding."""
    return settings.count("pad_token_id", 1, least=0) + 1


def _modern_bert(settings: HfSettings) -> Fields:
    settings.refuse("mlp_bias")
    every = settings.count("global_attn_every_n_layers", 3)
    local = [layer % every != 0 for layer in range(settings.layers())]
    window = HfSettings(settings.path, {"sliding_window": settings.count("local_attention", 128), **settings.data})
    return {
        "layer_norm": True,
        "embedding_norm": True,
        "bidirectional": True,
        "norm_eps": settings.number("norm_eps", 1e-5),
        "activation": "gelu" if settings.get("hidden_activation") is None else settings.activation(),
        "windows": windows(window, local),
        "parts": tuple(LayerParts(input_norm=layer > 0) for layer in range(settings.layers())),
        "pooling": "mean",
    }


def _gemma3_text(settings: HfSettings) -> Fields:
    found = DECODERS["Gemma3ForCausalLM"].fields(settings)
    if settings.flag("use_bidirectional_attention"):
        found |= {"bidirectional": True, "pooling": "mean"}
    return found


def _classifier_pooling(settings: HfSettings) -> Fields:
    pooling = settings.get("classifier_pooling", "cls")
    if pooling not in {"cls", "mean"}:
        raise UnsupportedModelError(f"{settings.path}: classifier_pooling {pooling!r} is not supported (cls, mean are)")
    return {"pooling": pooling}


def _first(_: HfSettings) -> Fields:
    return {"pooling": "cls"}


def _last(_: HfSettings) -> Fields:
    return {"pooling": "last"}


def _scoring(family: HfFamily, pooling: Callable[[HfSettings], Fields]) -> HfFamily:
    """The family with a head that scores pairs."""
    return replace(family, task="score", fields=lambda settings: {**family.fields(settings), **pooling(settings)})


def _headless(name: str) -> HfFamily:
    return replace(DECODERS[name], task="embed")


_BERT = HfFamily("bert", _bert, names.BERT, names.BERT_MODEL, task="embed")
_ROBERTA = HfFamily("roberta", _roberta, names.BERT, names.BERT_MODEL, task="embed", first_position=first_position)
_MODERN_BERT = HfFamily(
    "modernbert", _modern_bert, names.MODERN_BERT, names.MODERN_BERT_MODEL, task="embed", theta=160_000.0
)

ENCODERS: dict[str, HfFamily] = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _scoring(_BERT, _first),
    "RobertaModel": _ROBERTA,
    "RobertaForMaskedLM": _ROBERTA,
    "RobertaForSequenceClassification": _scoring(_ROBERTA, _first),
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForMaskedLM": _ROBERTA,
    "XLMRobertaForSequenceClassification": _scoring(_ROBERTA, _first),
    "ModernBertModel": _MODERN_BERT,
    "ModernBertForMaskedLM": _MODERN_BERT,
    "ModernBertForSequenceClassification": _scoring(_MODERN_BERT, _classifier_pooling),
    "Gemma3TextModel": replace(_headless("Gemma3ForCausalLM"), fields=_gemma3_text),
    "LlamaModel": _headless("LlamaForCausalLM"),
    "MistralModel": _headless("MistralForCausalLM"),
    "Qwen2Model": _headless("Qwen2ForCausalLM"),
    "Qwen3Model": _headless("Qwen3ForCausalLM"),
    "LlamaForSequenceClassification": _scoring(DECODERS["LlamaForCausalLM"], _last),
    "MistralForSequenceClassification": _scoring(DECODERS["MistralForCausalLM"], _last),
    "Qwen2ForSequenceClassification": _scoring(DECODERS["Qwen2ForCausalLM"], _last),
    "Qwen3ForSequenceClassification": _scoring(DECODERS["Qwen3ForCausalLM"], _last),
}
