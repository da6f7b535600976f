"""Encodes pairs of texts for models that read both at once, as the tokenizer's template of pairs says."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """The tokens of a pair. `second_text`: index of the first token of the second type, 0 if the template has none."""

    tokens: list[int]
    second_text: int


def encode_pair(
    tokenizer: Tokenizer,
    first: str,
    second: str,
    *,
    keep: int | None = None,
    of_second: int | None = None,
    limit: int | None = None,
) -> EncodedPair:
    """Encode two texts as one prompt, with the template's control tokens.

    Of each text the last `keep` tokens remain, of the second one its first `of_second`; None keeps all. With `limit`,
    the second text loses its last tokens until the pair has no more.
    """
    one, other = tokenizer.encode_batch([first, second], add_special_tokens=False)
    if of_second is not None:
        other.truncate(of_second)
    if keep is not None:
        one.truncate(keep, direction="left")
        other.truncate(keep, direction="left")
    if limit is not None:
        other.truncate(max(0, limit - len(one.ids) - tokenizer.num_special_tokens_to_add(True)))
    found = tokenizer.post_process(one, other, True)
    types = found.type_ids
    return EncodedPair(found.ids, types.index(1) if 1 in types else 0)
