"""Which layers of a GGUF file have windows or rotary positions: by its metadata, or by the architecture's rule."""

from __future__ import annotations

from octavo_inference.checkpoints.gguf_settings import GgufSettings
from octavo_inference.common.errors import ModelError


def windows(settings: GgufSettings, pattern: int = 0) -> tuple[int | None, ...]:
    """Each layer's window. A pattern of n gives every nth layer full attention; a list has a flag for each layer.

    `pattern` is llama.cpp's default for the architecture, whose files may not state it.
    """
    key, layers = "attention.sliding_window", settings.layers()
    path = settings.file.path
    window = settings.get(key, 0)
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ModelError(f"{path}: {settings.architecture}.{key} is {window!r}, expected a number of tokens")
    if window == 0:
        return ()
    given = settings.get(f"{key}_pattern", pattern)
    name = f"{settings.architecture}.{key}_pattern"
    if isinstance(given, memoryview):
        if len(given) < layers:
            raise ModelError(f"{path}: {name} has {len(given)} entries for {layers} layers")
        return tuple(window if local else None for local in given[:layers].tolist())
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ModelError(f"{path}: {name} is {given!r}, expected a number of layers")
    return tuple(None if given and (layer + 1) % given == 0 else window for layer in range(layers))


def every_nth(settings: GgufSettings, every: int) -> tuple[bool, ...]:
    """Rotary positions in all layers but every nth."""
    return tuple((layer + 1) % every != 0 for layer in range(settings.layers()))
