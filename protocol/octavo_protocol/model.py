"""The report of a model inspection: the Job's termination message, which the operator reads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.kv_tables import KvTables

WORD_LIMIT = 128
# A digest of sha512 has 135 characters.
REVISION_LIMIT = 160
NOTICE_LIMIT = 400
_Word = Annotated[str, msgspec.Meta(max_length=WORD_LIMIT)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

# The kubelet's limit for a termination message, in bytes.
REPORT_LIMIT = 4096


class GpuShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each of `ranks` GPUs that share a model holds. Sizes are bytes.

    `weights` by `engine.dtype` or `engine.quantization`; "auto" has activations of 16 bits. The other sizes are of the
    buffers of a step: `token` for each of its tokens, in addition to `token_elements` activations, `row` for each
    running request, `fixed` for all. `widest` activations of a token are kept in 8 bits, too, with those weights whose
    names are in `fp8`, and once more with those in `ordered`, which have sorted columns. A slot of an adapter has
    `adapter_elements` for each rank of the adapter, and `adapter_fixed` in addition. With adapters, a token has
    `adapter_products` for each rank, and a token's expert `adapter_choice_elements` activations more.
    """

    ranks: Annotated[int, msgspec.Meta(ge=1, le=16)]
    weights: dict[_Word, _Count]
    kv_elements_per_token: _Count
    token: _Count
    token_elements: _Count
    widest: _Count
    row: _Count
    fixed: _Count
    fp8: tuple[_Word, ...] = ()
    ordered: tuple[_Word, ...] = ()
    adapter_elements: _Count = 0
    adapter_fixed: _Count = 0
    adapter_products: _Count = 0
    adapter_choice_elements: _Count = 0


class AdapterExperts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What steps with adapters of a mixture of experts need: `count` experts, of which each token has `chosen`.

    Each of the latter has `products` for each rank of adapters.
    """

    count: _Count
    chosen: _Count
    products: _Count


class GpuReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model on GPUs: the numbers of GPUs that can share it, and the memory of each.

    `head_dim`: elements of a head, which share a scale in a KV cache of 8 bits; `row_elements`: activations of a
    running request; `position`: bytes for each position of the longest sequence. `graphs`: decode steps are captured.
    `adapter_experts` are those of a mixture of experts.
    """

    head_dim: _Count
    row_elements: _Count
    position: _Count
    shares: tuple[GpuShare, ...]
    graphs: bool = True
    adapter_experts: AdapterExperts | None = None


class ModelReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="model", omit_defaults=True):
    """A model that can be served. Fields that only a full load determines have their defaults. Sizes are bytes.

    `revision`: commit of a hub model, or digest of an image; `path`: its folder in a filled cache. `unresolved`: why
    the tag of an image has no digest. `format`: formats of the linear layers, those of most elements first;
    `quantized`: none of them has floats; `file_bytes`: size of the weights' files. `weights`: size of the weights in
    the engine on a CPU, embedding included, by `engine.dtype` or `engine.quantization`. `kv_elements_per_token`: of all
    block tables, each with an equal part; `kv_tables` are empty for one of full attention. `token_bytes`, `row_bytes`:
    upper bounds of the engine's working memory on a CPU for one token of a step, and for one running request or
    thread, `thread_bytes` in addition for each thread; the exact sizes depend on the instruction set of the node.
    `state_bytes`: the states of one sequence, of a model with state layers, on each GPU or on a CPU. `whole_prompts`:
    it is an encoder, which computes a prompt in one step, and needs its KV in that step alone. `adapter_elements`: of
    an adapter with a rank of 1 that changes all matrices of the layers; 0 if none can be served. `adapter_fixed`: of
    its rows of tokens, whatever its rank. `vocab`, `hidden`: rows and columns of the embedding and the head, which the
    file of an adapter may have whole. `draft`: the report on the draft model, which computes on CPUs only and has
    no part for GPUs.
    """

    revision: Annotated[str, msgspec.Meta(max_length=REVISION_LIMIT)] = ""
    path: Annotated[str, msgspec.Meta(max_length=512)] = ""
    unresolved: Annotated[str, msgspec.Meta(max_length=NOTICE_LIMIT)] = ""
    architecture: _Word = ""
    parameters: _Count = 0
    format: _Word = ""
    quantized: bool = False
    file_bytes: _Count = 0
    weights: dict[_Word, _Count] = {}
    kv_elements_per_token: _Count = 0
    kv_tables: tuple[KvTables, ...] = ()
    max_length: _Count = 0
    token_bytes: _Count = 0
    row_bytes: _Count = 0
    thread_bytes: _Count = 0
    state_bytes: _Count = 0
    whole_prompts: bool = False
    adapter_elements: _Count = 0
    adapter_fixed: _Count = 0
    vocab: _Count = 0
    hidden: _Count = 0
    gpu: GpuReport | None = None
    draft: ModelReport | None = None


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="failure", omit_defaults=True):
    """Why a model cannot be served: `reason` is a CamelCase word for programs, `message` a sentence for users.

    `draft`: because of its draft model.
    """

    reason: _Word
    message: Annotated[str, msgspec.Meta(max_length=REPORT_LIMIT)]
    draft: bool = False


def no_effect(quantization: str) -> str:
    """Why a quantization is refused for a model whose weights are all quantized: the server's and the operator's."""
    return f"quantization {quantization} has no effect: the checkpoint is already quantised; leave it at auto"


def encode_inspection(found: ModelReport | AdapterInspection | ModelFailure) -> bytes:
    """One line of JSON of at most `REPORT_LIMIT` bytes; a long message is truncated."""
    data = msgspec.json.encode(found)
    while len(data) > REPORT_LIMIT and isinstance(found, ModelFailure):
        found = msgspec.structs.replace(found, message=found.message[: len(found.message) * 3 // 4])
        data = msgspec.json.encode(found)
    return data


def decode_inspection(data: str | bytes) -> ModelReport | ModelFailure:
    """Decode the output of `encode_inspection`. Raises `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(data, type=ModelReport | ModelFailure)


def decode_adapter_inspection(data: str | bytes) -> AdapterInspection | ModelFailure:
    """Decode the inspection of an adapter. Raises `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(data, type=AdapterInspection | ModelFailure)
