"""Scales of the KV cache in checkpoints: checked, and not needed.

A checkpoint's scale is the largest |K| or |V| of a calibration, divided by the largest number of the cache's type, for
caches with one scale for a layer. Octavo's 8-bit pool (`kv_dtype`) has a scale for each token and head, computed from
the values themselves (kernels/rope_and_cache.py): no value is clipped, and small heads keep their digits. Other pools
have 16 or 32 bits and no scales.
"""

from __future__ import annotations

import re

from octavo_inference.checkpoints.quantized.source import FLOATS, Source

_NAMES = re.compile(
    r".*\.(?:"
    r"(?:self_attn|attn)\.(?:k|v|kv|q|prob)_scale"  # vLLM, compressed-tensors, FP8
    r"|k_proj\.k_scale|v_proj\.v_scale"  # ModelOpt
    r"|[kqv]_proj\.output_scale|kv_cache_scaling_factor"  # AutoFP8, Quark; TensorRT-LLM
    r")"
)


def check_cache_scales(source: Source) -> None:
    """Raises `ModelError` for scales of K, V or Q that are not finite and above 0."""
    if not source.contents:
        return
    for name, raw in source.checkpoint.tensors.items():
        if _NAMES.fullmatch(name) and raw.dtype in FLOATS:
            source.positive(name, raw.shape)
