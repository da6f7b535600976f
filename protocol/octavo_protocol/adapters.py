"""Low-rank adapters (LoRA), each a model by its own name: the list that a server reads, and its report on them.

The list is a file that changes while the server runs. In a pod, the container that downloads adapters writes it: each
adapter once it is there, or why it cannot be.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

MAX_ADAPTERS: Final = 256
MAX_ADAPTER_RANK: Final = 256
MAX_ADDED_TOKENS: Final = 512
MAX_ADAPTER_NAME: Final = 128
ADAPTER_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*\Z"
_RANKS: Final = 16
AdapterName = Annotated[str, msgspec.Meta(pattern=ADAPTER_NAME, max_length=MAX_ADAPTER_NAME)]

AdapterState = Literal["loading", "stored", "cached", "loaded", "failed"]
"""Not read yet; known to be usable, and read again for a request; in host memory; on the device; unusable."""


class ListedAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An adapter of the list. `path`: its folder. `failure`: why there is none, in one sentence.

    `source` says where it comes from, with its revision. Reports return it, so that a reader can tell an adapter from
    the one that had the same name before.
    """

    name: AdapterName
    path: str = ""
    source: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    failure: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter of a server. `rank`: the largest of its matrices, 0 while unknown. `failure`: why it is unusable."""

    name: str
    state: AdapterState
    source: str = ""
    rank: int = 0
    failure: str = ""


def packed_rank(rank: int) -> int:
    """The ranks for which a CPU keeps an adapter's matrices: whole halves of panels, of the widest kernels."""
    return -(-rank // _RANKS) * _RANKS


def is_adapter_name(text: str) -> bool:
    """True if an adapter may have this name."""
    return len(text) <= MAX_ADAPTER_NAME and re.match(ADAPTER_NAME, text) is not None


class WantedAdapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter that pods are to have, in the list that the operator writes.

    `source`: the URI with its revision, from which a pod downloads `file_bytes` and a configuration. `path`: where pods
    have it already, on a volume; it is not downloaded. `failure`: why it cannot be served.
    """

    name: AdapterName
    source: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    path: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    file_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    failure: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class AdapterInspection(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="adapter", omit_defaults=True):
    """An adapter of a kind that is served. `rank`: the largest of its matrices.

    `file_bytes`: size of its weights, tokenizer and template. `base`: the model it was trained on, if it names one of a
    hub.
    """

    revision: Annotated[str, msgspec.Meta(max_length=160)] = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_ADAPTER_RANK)] = 0
    file_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    base: Annotated[str, msgspec.Meta(max_length=200)] = ""


def encode_list(adapters: list[ListedAdapter]) -> bytes:
    """The file of a list."""
    return msgspec.json.format(msgspec.json.encode(adapters))


def decode_list(data: bytes) -> list[ListedAdapter]:
    """Decode a file of `encode_list`. Raises `msgspec.ValidationError`, which names the field, for a malformed one."""
    found = msgspec.json.decode(data, type=list[ListedAdapter])
    if len(found) > MAX_ADAPTERS:
        raise msgspec.ValidationError(f"{len(found)} adapters; at most {MAX_ADAPTERS} are possible")
    for number, adapter in enumerate(found):
        if any(adapter.name == other.name for other in found[:number]):
            raise msgspec.ValidationError(f"the name {adapter.name!r} occurs twice - at `$[{number}].name`")
        if not adapter.path and not adapter.failure:
            raise msgspec.ValidationError(f"an adapter needs a path or a failure - at `$[{number}].path`")
    return found


def encode_wanted(adapters: list[WantedAdapter]) -> bytes:
    """The list that the operator writes for its pods."""
    return msgspec.json.format(msgspec.json.encode(adapters))


def decode_wanted(data: bytes) -> list[WantedAdapter]:
    """Decode a file of `encode_wanted`. Raises `msgspec.DecodeError` for a malformed one."""
    return msgspec.json.decode(data, type=list[WantedAdapter])
