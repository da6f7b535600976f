"""Checkpoint formats (GGUF, safetensors): headers, configuration, weights in the canonical layout, sizes."""
