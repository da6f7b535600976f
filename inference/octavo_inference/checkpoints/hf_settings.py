"""config.json of a decoder: its numbers by name, checked, under the names that families have given them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import Activation

# Other names of a key, tried in order.
_ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "hidden_act": ("activation_function", "activation"),
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "partial_rotary_factor": ("rotary_pct",),
    "rope_theta": ("rotary_emb_base",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k",),
    "n_shared_experts": ("moe_num_shared_experts",),
}
_ACTIVATIONS: dict[object, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}


@dataclass(frozen=True, slots=True)
class HfSettings:
    """The values of config.json at `path`, those of a language model inside a multimodal one on top."""

    path: Path
    data: dict[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key or of its aliases, `default` where none is set."""
        for name in (key, *_ALIASES.get(key, ())):
            if self.data.get(name) is not None:
                return self.data[name]
        return default

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Raises `ModelError` for another value, or none."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.path}: {key} is {value!r}, expected a number")
        return value

    def positive(self, key: str, default: float | None = None) -> float | None:
        """A factor: None for null, `default` for a missing key."""
        if self.data.get(key, default) is None:
            return None
        value = self.number(key, default)
        if value <= 0:
            raise ModelError(f"{self.path}: {key} is {value}, expected more than 0")
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from `least` on."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError(f"{self.path}: {key} is {value!r}, expected a number from {least}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A switch."""
        value = self.get(key, default)
        if not isinstance(value, bool | int):
            raise ModelError(f"{self.path}: {key} is {value!r}, expected true or false")
        return bool(value)

    def layers(self) -> int:
        """The number of layers."""
        return self.count("num_hidden_layers")

    def per_layer(self, key: str) -> list[Any] | None:
        """A list with an entry for each layer, None if the key is not set."""
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) < self.layers():  # longer ones are published
            raise ModelError(f"{self.path}: {key} does not have one entry for each of the {self.layers()} layers")
        return values[: self.layers()]

    def activation(self) -> Activation:
        """The activation of MLPs."""
        key = "hidden_activation" if self.data.get("hidden_activation") else "hidden_act"
        name = self.get(key, "silu")
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"{self.path}: {key} {name!r} is not supported ({', '.join(map(str, _ACTIVATIONS))} are)"
            )
        return _ACTIVATIONS[name]

    def refuse(self, key: str, *allowed: Any) -> None:
        """Raises `UnsupportedModelError` for a key that is set to anything but `allowed`, false or null."""
        value = self.get(key)
        if value and value not in allowed:
            raise UnsupportedModelError(f"{self.path}: {key} {value!r} is not supported")
