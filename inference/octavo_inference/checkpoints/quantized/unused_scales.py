"""Scales of the KV cache and of activations: checkpoints have them, and nothing reads them.

A checkpoint's scale of the cache is the largest |K| or |V| of a calibration, divided by the largest number of the
cache's type, for caches with one scale for a layer. Octavo's 8-bit pool (`kv_dtype`) has a scale for each token and
head, computed from the values themselves (kernels/rope_and_cache.py): no value is clipped, and small heads keep their
digits. Other pools have 16 or 32 bits and no scales.

A static scale of activations serves kernels that multiply 8 bits by 8 bits, and clips activations beyond those of a
calibration. Here activations keep more bits, or get a scale for each token, which clips none.
"""

from __future__ import annotations

import logging
import math
import re
from functools import cache
from pathlib import Path

import numpy as np

from octavo_inference.checkpoints.quantized.source import FLOATS, Source, StoredNumbers

_LOG = logging.getLogger(__name__)
_MOST = 8  # numbers of a tensor

_NAMES = re.compile(
    r".*\.(?:"
    r"(?:self_attn|attn)\.(?:k|v|kv|q|prob)_scale"  # vLLM, compressed-tensors, FP8
    r"|k_proj\.k_scale|v_proj\.v_scale"  # ModelOpt
    r"|[kqv]_proj\.output_scale|kv_cache_scaling_factor"  # AutoFP8, Quark; TensorRT-LLM
    r")"
)


def warn_of_cache_scales(source: Source) -> None:
    """Log scales of K, V or Q that cannot be scales."""
    for name in source.checkpoint.tensors:
        if _NAMES.fullmatch(name):
            _check(source, name)


def warn_of_activation_scales(source: Source, module: str) -> None:
    """Log scales of a layer's inputs that cannot be scales."""
    for name in ("input_scale", "activation_scale", "input_global_scale"):
        _check(source, f"{module}.{name}")


def _check(source: Source, name: str) -> None:
    """Other shapes than those of a number, or of one for each part of a stacked layer, are not read."""
    raw = source.find(name)
    if raw is None or not source.contents or raw.dtype not in FLOATS or math.prod(raw.shape) > _MOST:
        return
    values = StoredNumbers(raw.dtype, source.array(name, FLOATS, raw.shape)).reshape(-1).rows(0, _MOST)
    if not (np.isfinite(values) & (values > 0)).all():
        _warn(source.folder, name.rpartition(".")[2])


@cache
def _warn(folder: Path, kind: str) -> None:
    """Log once for each kind of scales."""
    _LOG.warning(
        "%s: a tensor %s is 0 or no finite number: nothing reads it, but the checkpoint may be bad", folder, kind
    )
