"""The ids of the tokens that an adapter's tokenizer has: which of the model's, and which behind them. No numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo_inference.checkpoints.jsonfile import decode_json, optional_json, read_json
from octavo_inference.checkpoints.tokenizer_config import token_text
from octavo_inference.common.errors import ModelError
from octavo_protocol.adapters import MAX_ADDED_TOKENS

TEXT_FILES = {"tokenizer.json": 64 << 20, "tokenizer_config.json": 8 << 20, "chat_template.jinja": 1 << 18}
"""The files of an adapter about text that are read if they are there, with the most bytes that each may have."""

# Bytes of the list of added tokens, which is decoded while steps wait: some 50,000 tokens.
_MOST_ADDED = 8 << 20


class _NamedId(msgspec.Struct):
    id: int
    content: str


class _StoredTokenizer(msgspec.Struct):
    """Of tokenizer.json, the tokens beside those of the text that it was made from."""

    added_tokens: msgspec.Raw = msgspec.Raw(b"[]")


@dataclass(frozen=True, slots=True)
class LastToken:
    """The added token with the highest id. `text`: its name."""

    id: int
    text: str


def last_token(folder: Path) -> LastToken | None:
    """The last added token of an adapter's tokenizer, without one for padding alone, or -1 if it has none.

    None: the folder has no tokenizer. Raises `ModelError` for files that are too large or damaged.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    check_text_files(folder)
    stored = bytes(read_json(file, _StoredTokenizer, "a tokenizer").added_tokens)
    if len(stored) > _MOST_ADDED:
        raise ModelError(f"{file}: added tokens of {len(stored)} bytes; up to {_MOST_ADDED} are possible")
    padding = padding_token(folder)
    tokens = decode_json(stored, list[_NamedId], file, "a tokenizer")
    others = [token for token in tokens if token.content != padding]
    last = max(others, key=lambda token: token.id, default=_NamedId(-1, ""))
    return LastToken(last.id, last.content)


def padding_token(folder: Path) -> str | None:
    """The token for padding, which neither prompts nor answers have; None for one with another role, too."""
    settings: Mapping[str, Any] = optional_json(folder / "tokenizer_config.json")
    pad = token_text(settings.get("pad_token"))
    others = {token_text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token")}
    return None if pad in others else pad


def check_text_files(folder: Path) -> None:
    """Raise `ModelError` for a file about text that is too large, or none."""
    for name, most in TEXT_FILES.items():
        file = folder / name
        if not file.exists():
            continue
        if not file.is_file():
            raise ModelError(f"{file}: not a file")
        size = file.stat().st_size
        if size > most:
            raise ModelError(f"{file}: {size} bytes; up to {most} are possible for an adapter")


def beyond(last: int, vocab: int, added: int) -> str:
    """Why an adapter cannot have an id, and what helps. `added`: tokens that it may add to a model with `vocab` ids."""
    allowed = f", and an adapter may add {added}" if added else ""
    more = f"set max_added_tokens to {last + 1 - vocab}" if last < vocab + MAX_ADDED_TOKENS else "train fewer"
    return f"the served model has ids below {vocab}{allowed}: {more}, or train tokens that the model has spare"
