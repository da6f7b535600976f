"""Which layers of a decoder have windows, chunks or rotary positions, by config.json or the family's rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.common.errors import UnsupportedModelError


def kinds_of(settings: HfSettings, local: str = "sliding_attention") -> list[Any] | None:
    """`layer_types`, None without it. Raises `UnsupportedModelError` for kinds that are neither full nor `local`."""
    kinds = settings.per_layer("layer_types")
    unknown = {str(kind) for kind in kinds or []} - {"full_attention", local}
    if unknown:
        raise UnsupportedModelError(
            f"{settings.path}: layers of the type {', '.join(sorted(unknown))} are not supported"
        )
    return kinds


def windows(settings: HfSettings, local: Sequence[bool]) -> tuple[int | None, ...]:
    """Each layer's window: of `layer_types`, or of the layers that are `local` in files without it."""
    if settings.get("sliding_window") is None:
        return ()
    window, kinds = settings.count("sliding_window"), kinds_of(settings)
    if kinds is not None:
        local = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if each else None for each in local) if any(local) else ()


def alternating(settings: HfSettings, every: int) -> list[bool]:
    """Windows in all layers but every nth; `sliding_window_pattern` states another n."""
    every = settings.count("sliding_window_pattern", every)
    return [(layer + 1) % every != 0 for layer in range(settings.layers())]


def rotated_layers(settings: HfSettings) -> tuple[bool, ...]:
    """`no_rope_layers` has a 1 for layers with rotary positions; by default every fourth has none."""
    marks = settings.per_layer("no_rope_layers")
    if marks:
        return tuple(bool(mark) for mark in marks)
    every = settings.count("no_rope_layer_interval", 4)
    return tuple((layer + 1) % every != 0 for layer in range(settings.layers()))


def chunks(settings: HfSettings, rotated: Sequence[bool]) -> tuple[int | None, ...]:
    """Llama 4: attention within chunks, in the rotated layers or by `layer_types`."""
    if settings.get("attention_chunk_size") is None:
        return ()
    size, kinds = settings.count("attention_chunk_size"), kinds_of(settings, "chunked_attention")
    local = rotated if kinds is None else [kind == "chunked_attention" for kind in kinds]
    return tuple(size if each else None for each in local)
