"""GGUF files with a vocabulary and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer

from octavo_inference.checkpoints.gguf_header import read_header
from octavo_inference.tokenizer.tokenizer import tokenizer_from_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]


def write_vocabulary(
    path: Path,
    kind: str,
    tokens: Sequence[tuple[str, int]],
    merges: Sequence[str] | None = None,
    *,
    architecture: str = "llama",
    scores: Sequence[float] | None = None,
    changes: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Path:
    """`tokens` with types, `keys` below `tokenizer.ggml`. `changes` replace any of them; None leaves one out."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(kind)
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    changes = changes or {}
    for name in changes:
        writer.kv_data[0].pop(f"tokenizer.ggml.{name}", None)
    for name, value in (keys | dict(changes)).items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, (list, bytes)):
            writer.add_array(key, value)
        elif value is not None:
            {bool: writer.add_bool, int: writer.add_int64, float: writer.add_float32, str: writer.add_string}[
                type(value)
            ](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def load_vocabulary(path: Path, kind: str, tokens: Sequence[tuple[str, int]], *args: Any, **keys: Any) -> Tokenizer:
    """The tokenizer of the file that `write_vocabulary` writes."""
    return tokenizer_from_gguf(read_header(write_vocabulary(path / "m.gguf", kind, tokens, *args, **keys)))
