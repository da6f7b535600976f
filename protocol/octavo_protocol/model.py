"""The report of a model inspection: the Job's termination message, which the operator reads."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

# The kubelet's limit for a termination message, in bytes.
REPORT_LIMIT = 4096


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="model", omit_defaults=True):
    """A model that can be served. Fields that only a full load determines have their defaults. Sizes are bytes.

    `revision`: commit of a hub model; `path`: its folder in a filled cache. `weights`: size of the weights in the
    engine, embedding included, by `engine.dtype` or `engine.quantization`. `token_bytes` and `row_bytes`: upper bounds
    of the engine's working memory for one token of a step, and for one running request or thread; the exact sizes
    depend on the instruction set of the node.
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
    """Why a model cannot be served: `reason` is a CamelCase word for programs, `message` a sentence for users."""

    reason: _Word
    message: Annotated[str, msgspec.Meta(max_length=REPORT_LIMIT)]


def encode_inspection(found: ModelReport | ModelFailure) -> bytes:
    """One line of JSON of at most `REPORT_LIMIT` bytes; a long message is truncated."""
    data = msgspec.json.encode(found)
    while len(data) > REPORT_LIMIT and isinstance(found, ModelFailure):
        found = ModelFailure(reason=found.reason, message=found.message[: len(found.message) * 3 // 4])
        data = msgspec.json.encode(found)
    return data


def decode_inspection(data: str | bytes) -> ModelReport | ModelFailure:
    """Decode the output of `encode_inspection`. Raises `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(data, type=ModelReport | ModelFailure)
