"""The text that calibrates a quantization and measures it, as windows of tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo_inference.common.errors import SettingsError

BUNDLED = "the bundled text"
_WINDOW = 512
_LEAST_WINDOWS = 5


@dataclass(frozen=True, slots=True)
class Windows:
    """Token ids [windows, tokens]. `calibration` comes first in the text, `held_out` is its last fifth."""

    calibration: NDArray[np.int64]
    held_out: NDArray[np.int64]
    digest: str


def read_text(path: Path | None) -> str:
    """The text of a file, or the bundled one. Raises `SettingsError`."""
    if path is None:
        return (files(__package__) / "text.txt").read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--calibration: {path}: cannot be read as UTF-8 text: {error}", "--calibration") from None


def windows_of(text: str, tokenizer: Tokenizer, longest: int, source: str) -> Windows:
    """Split a text into windows, each a sequence of its own that starts as the model's prompts do.

    `longest`: the model's context. Raises `SettingsError` for a text of less than five windows.
    """
    start = tokenizer.encode("").ids
    size = min(_WINDOW, longest)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    each = size - len(start)
    count = len(tokens) // each if each > 1 else 0
    if count < _LEAST_WINDOWS:
        raise SettingsError(
            f"--calibration: {source} has {len(tokens)} tokens of this model, at least {_LEAST_WINDOWS * each} are "
            "needed: give a longer text",
            "--calibration",
        )
    body = np.array(tokens[: count * each], np.int64).reshape(count, each)
    whole = np.concatenate([np.tile(np.array(start, np.int64), (count, 1)), body], axis=1)
    held_out = max(1, count // 5)
    digest = hashlib.blake2b(whole.tobytes(), digest_size=16).hexdigest()
    return Windows(whole[:-held_out], whole[-held_out:], digest)
