"""What tokenizer_config.json of Hugging Face's folders has. No numpy, for the API process."""

from __future__ import annotations

from typing import Any


def token_text(token: Any) -> str | None:
    """The text of a token, None if it is no token."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
