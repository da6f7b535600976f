"""Encodes text that clients send: other threads go on meanwhile, and a text that is too long costs a bounded time."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer

from octavo_inference.common.errors import RequestError

# Characters of the first part of a long text, per token allowed. Texts of natural languages have fewer per token.
_FIRST_PART = 4


class PromptTooLongError(RequestError):
    """A text with more tokens than allowed. It has at least `tokens`: the rest was not encoded."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the text has at least {tokens} tokens; the limit is {limit}")
        self.tokens = tokens


def token_ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Tokens of `text`. Unlike `Tokenizer.encode`, this releases the GIL."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
    return ids


def ids_within(tokenizer: Tokenizer, text: str, limit: int | None, *, add_special_tokens: bool = True) -> list[int]:
    """Tokens of `text`, as `token_ids`. Raises `PromptTooLongError` for one far above `limit` tokens.

    A long text is encoded in parts that grow, until one of them exceeds the limit. So the time depends on the limit,
    not on the length of the text. A text a little above the limit is encoded whole, and the caller rejects it.
    """
    if limit is not None:
        most = surely_above(limit)
        size = _FIRST_PART * most
        while 2 * size < len(text):
            count = len(token_ids(tokenizer, text[:size], add_special_tokens=False))
            if count > most:
                raise PromptTooLongError(count, limit)
            size *= 4
    return token_ids(tokenizer, text, add_special_tokens=add_special_tokens)


def surely_above(limit: int) -> int:
    """More tokens than this in a part of a text prove that the whole exceeds `limit`.

    Cutting a text changes tokens near the cut only, so the number is a little larger than the limit.
    """
    return limit + limit // 8 + 64


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same vocabulary that encodes control tokens in a text as plain text.

    The switch is a property of the object, and other threads use the first one meanwhile. The two share the model, so
    the second takes no memory to speak of.
    """
    plain = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        value = getattr(tokenizer, part)
        if value is not None:
            setattr(plain, part, value)
    added = tokenizer.get_added_tokens_decoder()
    for _, token in sorted(added.items()):
        add: Callable[..., int] = plain.add_special_tokens if token.special else plain.add_tokens
        add([token])
    if plain.get_added_tokens_decoder().keys() != added.keys():
        # Ids with gaps cannot be added one by one: copy everything.
        plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    return plain
