"""Widths of a decoder's activations. Needs no GPU library, for memory sums on machines without one."""

from __future__ import annotations

from octavo_inference.models.config import ModelConfig


def widest_mlp(config: ModelConfig) -> int:
    """Inner elements of the widest dense MLP of a layer, or of an MLP that is shared beside experts."""
    dense = [part.intermediate or 0 for part in map(config.part, range(config.layers)) if part.feed_forward == "dense"]
    return max([*dense, 0 if config.experts is None else config.experts.shared])


def adds_outputs(config: ModelConfig) -> bool:
    """Whether a layer adds the outputs of two of its parts: of attention and a state layer, or of attention and MLP."""
    return config.parallel or any(part.attention and part.state for part in config.parts)
