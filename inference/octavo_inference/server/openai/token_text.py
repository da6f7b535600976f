"""Tokens as text in log-probabilities: their labels, and their places in the text."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from tokenizers import Tokenizer

from octavo_inference.tokenizer.detokenizer import token_bytes


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """The names of tokens in an answer. With `as_ids`, a token is named `token_id:N`, else by its text."""

    tokenizer: Tokenizer
    as_ids: bool = False

    def label(self, token: int) -> str:
        r"""The token's text. A part of a character is `bytes:` and its bytes, such as `bytes:\xe2\x96`."""
        if self.as_ids:
            return _by_id(token)
        data = token_bytes(self.tokenizer, token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def shown(self, token: int) -> tuple[str, list[int]]:
        """The token's text with incomplete characters as U+FFFD, and its bytes."""
        data = token_bytes(self.tokenizer, token)
        return _by_id(token) if self.as_ids else data.decode("utf-8", "replace"), list(data)

    def keyed(self, token: int, logprob: float, others: list[tuple[int, float]]) -> dict[str, float]:
        """The log-probabilities of `others` and of the chosen token, by label. No two tokens share a key."""
        labels = {token: self.label(token)}
        taken = set(labels.values())
        for other, _ in others:
            label = labels[other] if other in labels else self.label(other)
            if other not in labels and label in taken:
                label = _by_id(other)
            labels[other] = label
            taken.add(label)
        return {labels[other]: value for other, value in [*others, (token, logprob)]}


class TextOffsets:
    """Where the tokens of one text start, in characters. `hidden` are tokens that the text does not show."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.hidden: frozenset[int] = frozenset()
        self._tokenizer = tokenizer
        self._place = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: int) -> int:
        """The place of `token`, which is the next one. The parts of a character all start where it does."""
        place = self._place
        if token not in self.hidden:
            self._place += len(self._decoder.decode(token_bytes(self._tokenizer, token)))
        return place


def control_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of control tokens, such as the one for the beginning of a text."""
    return frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def _by_id(token: int) -> str:
    return f"token_id:{token}"
