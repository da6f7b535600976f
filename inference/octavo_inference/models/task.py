"""What a model computes, for all processes."""

from typing import Literal

Task = Literal["generate", "embed", "score"]
"""Predicts tokens, gives embeddings alone, or scores pairs of texts."""
