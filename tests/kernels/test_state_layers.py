"""Models with state layers on the CUDA backend, interpreted: logits and tokens of the reference."""

from __future__ import annotations
