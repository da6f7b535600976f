"""Configuration of models that the native decoder does not support and transformers computes; reasons to refuse some.

No torch here: the API process reads a model's tokenizer and configuration, never its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.from_hf import eos_token_ids
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.quantized import is_supported
from octavo_inference.checkpoints.quantized.quantization_config import quantization_settings
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.task import Task
from octavo_protocol.engine_settings import PoolingName

# Layer types whose attention selects keys by position; others carry state or select keys by content.
_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_LAYER_COUNTS, _HEAD_COUNTS = ("num_hidden_layers", "n_layer", "n_layers"), ("num_attention_heads", "n_head", "n_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model")
# Keys that give K and V another size: latent attention, one head for all, layers that differ.
_OTHER_SIZES = frozenset({"kv_lora_rank", "multi_query", "global_head_dim", "num_global_key_value_heads"})
_ALIBI = frozenset({"bloom", "mpt"})


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """A decoder as described by config.json, without its inner sizes.

    `missing`: the feature that the native decoder lacks. `kv_elements`: K and V elements of a token over all layers, 0
    where config.json does not name them as usual; a loaded model has those of its pool. `quantization`: the method of
    quantized weights, which Octavo's products on a GPU read, but not transformers.
    """

    architecture: str
    missing: str
    vocab: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    digest: str
    kv_elements: int = 0
    quantization: str = ""

    @property
    def added_ids(self) -> int:
        """Zero: it takes no adapters."""
        return 0

    @property
    def own_vocab(self) -> int:
        """All ids."""
        return self.vocab

    @property
    def task(self) -> Task:
        """It predicts tokens."""
        return "generate"

    @property
    def pooling(self) -> PoolingName:
        """As for any decoder."""
        return "last"

    @property
    def bidirectional(self) -> bool:
        """False: encoders are computed natively."""
        return False

    @property
    def state_bytes(self) -> int:
        """Zero: models with state layers are not computed by transformers."""
        return 0

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V over all layers."""
        return self.kv_elements * bytes_per_element


def describe(folder: Path, digest: str, missing: str) -> ForeignConfig:
    """Read config.json. Raises `ModelError` for models that cannot be served at all, with the reason."""
    path = folder / "config.json"
    data = optional_json(path)
    names = data.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(f"{path}: architectures is {names!r}, expected a list with the name of the model's class")
    _refuse(path, names[0], data)
    quantization = quantization_settings(folder)
    if quantization is not None and not is_supported(quantization.method):
        raise UnsupportedModelError(
            f"{path}: {names[0]} cannot be served: Octavo does not read its quantized weights ({quantization.method}), "
            f"and native kernels do not take this model ({missing}); use bf16, f16 or f32 weights or a GGUF file"
        )
    return ForeignConfig(
        architecture=names[0],
        missing=missing,
        vocab=_count(path, data, ("vocab_size",)),
        max_positions=_longest(data, _count(path, data, _POSITIONS)),
        eos_token_ids=eos_token_ids(folder, data),
        digest=digest,
        kv_elements=_kv_elements(data),
        quantization="" if quantization is None else str(quantization.method),
    )


def require_unquantized(folder: Path, config: ForeignConfig) -> None:
    """Raises `UnsupportedModelError` for quantized weights, on a CPU."""
    if config.quantization:
        raise UnsupportedModelError(
            f"{folder / 'config.json'}: {config.architecture} cannot be served on a CPU: only native kernels read "
            f"quantized weights ({config.quantization}), and they do not take this model ({config.missing}); use bf16, "
            "f16 or f32 weights, a GGUF file or a GPU"
        )


def _kv_elements(data: dict[str, Any]) -> int:
    """K and V elements of a token over all layers, for layers of one size; 0 where other keys decide."""
    layers, heads, hidden = (_first(data, keys) for keys in (_LAYER_COUNTS, _HEAD_COUNTS, _WIDTHS))
    kv_heads = data.get("num_key_value_heads") or heads
    dim = data.get("head_dim") or (hidden // heads if heads else 0)
    known = all(isinstance(value, int) and value > 0 for value in (kv_heads, dim)) and not _OTHER_SIZES & data.keys()
    return 2 * layers * int(kv_heads) * int(dim) if known else 0


def _first(data: dict[str, Any], keys: tuple[str, ...]) -> int:
    """The first of these keys that is a positive integer; 0 without one."""
    found = (data.get(key) for key in keys)
    return next((value for value in found if isinstance(value, int) and value > 0), 0)


def _refuse(path: Path, name: str, data: dict[str, Any]) -> None:
    def refuse(reason: str) -> ModelError:
        return UnsupportedModelError(f"{path}: {name} cannot be served: {reason}")

    if data.get("is_encoder_decoder") or data.get("add_cross_attention"):
        raise refuse("it is an encoder-decoder model; Octavo serves decoder-only models")
    if data.get("alibi") or data.get("model_type") in _ALIBI:
        raise refuse("its positions are a bias on the attention scores (ALiBi), which paged attention does not have")
    layers = data.get("layer_types") or data.get("layers_block_type") or []
    kinds = sorted({str(kind) for kind in layers} - _LAYERS) if isinstance(layers, list) else [str(layers)]
    if kinds:
        raise refuse(f"it has layers that are not softmax attention ({', '.join(kinds)}); their state cannot be paged")
    if any(_rope_kind(rope) == "dynamic" for rope in _ropes(data)):
        raise refuse("its rotary frequencies change with the length of the batch (rope type dynamic)")


def _longest(data: dict[str, Any], positions: int) -> int:
    """Limit longrope models to their original length: beyond it, the frequencies of all earlier tokens change, too."""
    for rope in _ropes(data):
        original = rope.get("original_max_position_embeddings", data.get("original_max_position_embeddings"))
        if _rope_kind(rope) == "longrope" and isinstance(original, int) and 0 < original < positions:
            return original
    return positions


def _ropes(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Rotary parameters: one set, or one for each type of layer."""
    rope = data.get("rope_parameters") or data.get("rope_scaling")
    if not isinstance(rope, dict):
        return []
    return [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]


def _rope_kind(rope: dict[str, Any]) -> object:
    return rope.get("rope_type", rope.get("type"))


def _count(path: Path, data: dict[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = data.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ModelError(f"{path}: {key} is {value!r}, expected a positive number")
            return value
    raise ModelError(f"{path}: {' or '.join(keys)} is missing")
