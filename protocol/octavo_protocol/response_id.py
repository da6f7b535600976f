"""Ids of stored responses: `resp_`, the tag of the replica that has it, and 32 random hexadecimal digits.

A stored response is in the memory of one replica. Gateways read the tag of an id in a request to find this replica.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

TAG_LENGTH: Final = 8
# The kernel's limit for host names; a pod's host name is its name, cut to this length.
_MAX_HOST_NAME: Final = 63
_ID: Final = re.compile(rf"resp_([0-9a-f]{{{TAG_LENGTH}}})[0-9a-f]{{32}}", re.ASCII)


def replica_tag(name: str) -> str:
    """The tag of a replica, from the name of its pod, which is also its host name."""
    return hashlib.sha256(name[:_MAX_HOST_NAME].encode()).hexdigest()[:TAG_LENGTH]


def response_id(replica: str, unique: str) -> str:
    """The id of a response on the replica of this name; `unique` is 32 random hexadecimal digits."""
    return f"resp_{replica_tag(replica)}{unique}"


def message_id(response: str) -> str:
    """The id of the message in this response: a reference to the message leads to the response."""
    return f"msg_{response.removeprefix('resp_')}"


def response_of_message(given: str) -> str | None:
    """The response that has the message of this id; None for an id that `message_id` has not made."""
    response = f"resp_{given.removeprefix('msg_')}"
    return response if given.startswith("msg_") and _ID.fullmatch(response) else None


def tag_of(given: str) -> str | None:
    """The replica's tag in a response id; None for a text that is no such id."""
    match = _ID.fullmatch(given)
    return match[1] if match else None
