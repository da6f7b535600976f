"""Ids of stored responses: `resp_`, the tag of the replica that has it, and 32 random hexadecimal digits.

Items of an answer have the digits of its response, so that a reference to one leads to the response, too. A stored
response is in the memory of one replica. Gateways read the tag of an id in a request to find this replica.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, get_args

TAG_LENGTH: Final = 8
# The kernel's limit for host names; a pod's host name is its name, cut to this length.
_MAX_HOST_NAME: Final = 63
_ID: Final = re.compile(rf"resp_([0-9a-f]{{{TAG_LENGTH}}})[0-9a-f]{{32}}", re.ASCII)

ItemKind = Literal["msg", "rs", "fc"]
"""Messages, thinking and calls of functions."""
ITEM_KINDS: Final[tuple[ItemKind, ...]] = get_args(ItemKind)
_ITEM_ID: Final = re.compile(
    rf"(?:{'|'.join(ITEM_KINDS)})_([0-9a-f]{{{TAG_LENGTH + 32}}})(?:_[1-9][0-9]{{0,3}})?", re.ASCII
)


def replica_tag(name: str) -> str:
    """The tag of a replica, from the name of its pod, which is also its host name."""
    return hashlib.sha256(name[:_MAX_HOST_NAME].encode()).hexdigest()[:TAG_LENGTH]


def response_id(replica: str, unique: str) -> str:
    """The id of a response on the replica of this name; `unique` is 32 random hexadecimal digits."""
    return f"resp_{replica_tag(replica)}{unique}"


def item_id(response: str, kind: ItemKind, number: int) -> str:
    """The id of an item of the answer in this response: the message, thinking or call of this number, from 0."""
    digits = response.removeprefix("resp_")
    return f"{kind}_{digits}_{number}" if number else f"{kind}_{digits}"


def response_of_item(given: str) -> str | None:
    """The response that has the item of this id; None for an id that `item_id` has not made."""
    match = _ITEM_ID.fullmatch(given)
    return f"resp_{match[1]}" if match else None


def tag_of(given: str) -> str | None:
    """The replica's tag in a response id; None for a text that is no such id."""
    match = _ID.fullmatch(given)
    return match[1] if match else None
