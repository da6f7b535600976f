"""The block keys of a prompt, in the value of one response header: `tokens/block size/keys`.

Gateways route by text, pods cache by blocks of tokens; this header maps parts of a text to blocks. A long prompt has
too many blocks for a header, so the header has evenly spaced ones. Their positions follow from the prompt's length, so
only the keys are sent: 64 keys take 684 characters.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from octavo_protocol.hashing import KEY_BYTES, keys

MAX_KEYS: Final = 64
_MAX_TOKENS: Final = 2**31 - 1
_VALUE: Final = re.compile(r"(0|[1-9][0-9]{0,9})/([1-9][0-9]{0,4})/([A-Za-z0-9_-]{0,1024}={0,2})", re.ASCII)


class PromptError(ValueError):
    """A header value that no Octavo pod sends."""


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """A prompt of `tokens` tokens. `marks`: (tokens up to the end of a full block, that block's key), in order.

    The last full block is always among the marks. There are none if prefix caching is off or the prompt is shorter than
    a block.
    """

    tokens: int
    block_size: int
    marks: tuple[tuple[int, bytes], ...] = ()


def chosen(blocks: int) -> range | list[int]:
    """The numbers, from 1, of the full blocks in the header: all, or `MAX_KEYS` evenly spaced ones with the last."""
    if blocks <= MAX_KEYS:
        return range(1, blocks + 1)
    return [-(-blocks * i // MAX_KEYS) for i in range(1, MAX_KEYS + 1)]


def describe(tokens: int, block_size: int, hashes: Sequence[bytes]) -> PromptBlocks:
    """The marks of a prompt, from the hashes of all its full blocks; `hashes` is empty without prefix caching."""
    marks = tuple((block * block_size, hashes[block - 1][:KEY_BYTES]) for block in chosen(len(hashes)))
    return PromptBlocks(tokens, block_size, marks)


def encode_prompt(prompt: PromptBlocks) -> str:
    """The header value of a prompt."""
    data = base64.urlsafe_b64encode(b"".join(key for _, key in prompt.marks)).decode()
    return f"{prompt.tokens}/{prompt.block_size}/{data}"


def decode_prompt(value: str) -> PromptBlocks:
    """Decode a header value of `encode_prompt`. Raises `PromptError` for anything else; bounded in time and size."""
    match = _VALUE.fullmatch(value)
    if match is None or int(match[1]) > _MAX_TOKENS:
        raise PromptError(f"{value[:64]!r} is not of the form tokens/block size/keys")
    tokens, block_size = int(match[1]), int(match[2])
    try:
        found = keys(base64.b64decode(match[3], altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"{value[:64]!r} has invalid block keys: {error}") from None
    blocks = chosen(tokens // block_size)
    if found and len(found) != len(blocks):
        raise PromptError(
            f"{value[:64]!r} has {len(found)} block keys; expected {len(blocks)} or none for a prompt of "
            f"{tokens} tokens in blocks of {block_size}"
        )
    marks = zip((block * block_size for block in blocks), found, strict=False)
    return PromptBlocks(tokens, block_size, tuple(marks))
