"""Decodes JSON files of checkpoints into types, with errors that name the file and the problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from octavo_inference.common.errors import ModelError, UnreadableError

T = TypeVar("T")


def decode_json(data: bytes, kind: type[T], path: Path, what: str) -> T:
    """Decode `data` of the file `path`. Raises `ModelError` saying that it is not a valid `what`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not {what}: {error}") from error


def read_json(path: Path, kind: type[T], what: str) -> T:
    """`decode_json` of a whole file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    return decode_json(data, kind, path, what)


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} if the file does not exist."""
    if not path.exists():
        return {}
    try:
        return read_json(path, dict[str, Any], "a JSON object")
    except ModelError:
        # Python writes numbers that JSON does not have, such as time_step_limit [0.0, Infinity] of hybrid models.
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise
        return found
