"""What a pod says of a prompt's blocks, in the value of one response header: `tokens/block size/keys`.

A gateway routes by text and pods cache by blocks of tokens; this is where it learns which block stands behind which
part of a text. A long prompt has too many blocks for a header, so an even choice of them is named. Which ones follows
from the prompt's length, so only their keys are sent: 64 of them make 684 characters.
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
    """A header's value that no pod of ours sends."""


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """A prompt of `tokens` tokens. `marks`: (tokens up to the end of a full block, that block's key), in order.

    The last full block is always among the marks; there are none when the pod shares no prefixes, or the prompt is
    shorter than a block.
    """

    tokens: int
    block_size: int
    marks: tuple[tuple[int, bytes], ...] = ()


def chosen(blocks: int) -> range | list[int]:
    """Which of a prompt's full blocks are named, counted from 1: all, or `MAX_KEYS` evenly spaced with the last."""
    if blocks <= MAX_KEYS:
        return range(1, blocks + 1)
    return [-(-blocks * i // MAX_KEYS) for i in range(1, MAX_KEYS + 1)]


def describe(tokens: int, block_size: int, hashes: Sequence[bytes]) -> PromptBlocks:
    """A prompt by the hashes of all its full blocks; none of them when prefixes are not shared."""
    marks = tuple((block * block_size, hashes[block - 1][:KEY_BYTES]) for block in chosen(len(hashes)))
    return PromptBlocks(tokens, block_size, marks)


def encode_prompt(prompt: PromptBlocks) -> str:
    """The header's value for what `describe` made."""
    data = base64.urlsafe_b64encode(b"".join(key for _, key in prompt.marks)).decode()
    return f"{prompt.tokens}/{prompt.block_size}/{data}"


def decode_prompt(value: str) -> PromptBlocks:
    """What `encode_prompt` was given. Raises `PromptError` for anything else; bounded in time and size."""
    match = _VALUE.fullmatch(value)
    if match is None or int(match[1]) > _MAX_TOKENS:
        raise PromptError(f"{value[:64]!r} is not of the form tokens/block size/keys")
    tokens, block_size = int(match[1]), int(match[2])
    try:
        found = keys(base64.b64decode(match[3], altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"{value[:64]!r} has no whole block keys: {error}") from None
    blocks = chosen(tokens // block_size)
    if found and len(found) != len(blocks):
        raise PromptError(
            f"{value[:64]!r} names {len(found)} blocks; a prompt of {tokens} tokens in blocks of {block_size} "
            f"has {len(blocks)} to name, or none"
        )
    marks = zip((block * block_size for block in blocks), found, strict=False)
    return PromptBlocks(tokens, block_size, tuple(marks))
