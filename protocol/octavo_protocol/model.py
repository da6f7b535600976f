"""What a look at a model found: written by the Job that looks, as its termination message, and read by the operator."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

# The kubelet keeps this much of a termination message.
REPORT_LIMIT = 4096


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="model", omit_defaults=True):
    """A model that can be served; what only a load would tell has its default. Sizes in bytes.

    `revision` is the commit of a hub model, `path` its folder in a cache that was filled. `weights` is what the engine
    will hold of them, the embedding included, by `engine.dtype`. `token_bytes` and `row_bytes` are the engine's working
    memory for one token of a step and for one running request or thread, at most: which instruction set the engine will
    find is not known here.
    """

    revision: _Word = ""
    path: Annotated[str, msgspec.Meta(max_length=512)] = ""
    architecture: _Word = ""
    parameters: _Count = 0
    weights: dict[_Word, _Count] = {}
    kv_elements_per_token: _Count = 0
    max_length: _Count = 0
    token_bytes: _Count = 0
    row_bytes: _Count = 0


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="failure"):
    """Why a model cannot be served: one word for programs, a sentence for people."""

    reason: _Word
    message: Annotated[str, msgspec.Meta(max_length=REPORT_LIMIT)]


def encode_look(found: ModelReport | ModelFailure) -> bytes:
    """One line of JSON, no longer than what is kept of it: a long message loses its end."""
    data = msgspec.json.encode(found)
    while len(data) > REPORT_LIMIT and isinstance(found, ModelFailure):
        found = ModelFailure(reason=found.reason, message=found.message[: len(found.message) * 3 // 4])
        data = msgspec.json.encode(found)
    return data


def decode_look(data: str | bytes) -> ModelReport | ModelFailure:
    """What `encode_look` made. Raises `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(data, type=ModelReport | ModelFailure)
