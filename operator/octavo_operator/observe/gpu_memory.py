"""Estimates the memory of each GPU of a replica from the model inspection, before a server runs.

Same arithmetic as the memory plan of `octavo_inference.backends.cuda.factory` and `core.kv_cache_sizing.fit`; a test
compares the two. The buffers of a step depend a little on the GPU: the estimate takes the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.gpu_fit import Card
from octavo_operator.observe.memory_estimate import added_bytes
from octavo_operator.observe.pool_estimate import PoolEstimate
from octavo_protocol.engine_settings import GPU_PROFILES, EngineSettings, added_tokens
from octavo_protocol.kv_tables import blocks_held, longest_held, table_count
from octavo_protocol.model import GpuReport, GpuShare, ModelReport
from octavo_protocol.state_slots import most_useful, state_slots

_MIB = 1 << 20
_BLOCK_SIZE = 16
_ID_BYTES = 4
_SCALE_BYTES = 4
_STEPS = 2  # in flight
_TRANSFER = 8 * _MIB
# What a process has of a GPU before it loads a model: its CUDA context and what the driver keeps. At least this much of
# the memory in the node's label is missing then; a server knows it exactly.
_CONTEXT = 512 * _MIB
# The server leaves this much free, and more for the rounding of torch's allocator.
_RESERVE, _RESERVE_SHARE = 512 * _MIB, 0.02
_ROUNDING, _MOST_ROUNDING = 0.06, 512 * _MIB
_GRAPHS, _GRAPH = 64 * _MIB, 4 * _MIB
# Of adapters: ranks are padded to a unit; few tokens have products in parts; places of a block; lists of tiles.
_UNIT, _MOST_PARTS, _PARTED, _PLACES, _TILES = 8, 16, 8192, 64, 1 << 16
# Of added tokens: bytes of one in a row, and of a tile of the sampler; rows with penalties.
_ADDED, _SAMPLED_TILE, _PENALISED = 16, 1024, 32
_PARTED_CHOICES, _FEW_CHOICES, _FEW_PLACES = 2048, 256, 16
# Flags of octavo-server that change its memory on a GPU: with one of them there is no estimate.
_SIZING = frozenset(
    {
        *("kv-memory", "kv-dtype", "max-model-len", "max-running-requests", "max-batched-tokens", "dtype"),
        *("block-size", "profile", "device", "backend", "quantization", "cuda-graphs", "no-cuda-graphs"),
        *("chunked-prefill", "no-chunked-prefill", "state-snapshots"),
        *("max-loaded-adapters", "max-adapter-rank", "max-added-tokens"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEstimate(PoolEstimate):
    """Bytes on each GPU of one replica at full use. `card` is the GPU; None if only `kv` is known to matter.

    `room`: what the rest leaves for the pool, negative if it leaves nothing.
    """

    card: Card | None
    weights: int
    adapters: int = 0
    working: int
    graphs: int
    reserve: int
    room: int

    @property
    def total(self) -> int:
        """All bytes, with the CUDA context and what stays free."""
        return self.weights + self.adapters + self.kv + self.working + self.graphs + self.reserve


def weight_bytes(settings: EngineSettings, found: ModelReport) -> int | None:
    """Bytes of the weights on each GPU, None if they are unknown."""
    share = _share(settings, found.gpu)
    return None if share is None else share.weights.get(_kind(settings))


def kv_bytes(settings: EngineSettings, found: ModelReport) -> int | None:
    """Bytes of one token in the KV cache pool of each GPU, None if they are unknown."""
    share = _share(settings, found.gpu)
    if share is None or found.gpu is None or not found.gpu.head_dim:
        return None
    if settings.kv_dtype == "auto":
        return share.kv_elements_per_token * _element_bytes(settings)
    # A head of a token has one scale.
    return share.kv_elements_per_token + _SCALE_BYTES * share.kv_elements_per_token // found.gpu.head_dim


def estimate(spec: Spec, found: ModelReport, card: Card | None) -> GpuEstimate | None:
    """The estimate for a replica on such GPUs; None where only the server can tell."""
    if {flag.lstrip("-").partition("=")[0] for flag in spec.engine.extra_args} & _SIZING:
        return None
    return estimate_of(spec.engine.settings, found, card)


def estimate_of(settings: EngineSettings, found: ModelReport, card: Card | None) -> GpuEstimate | None:
    """Like `estimate`, for the engine's settings."""
    gpu, share = found.gpu, _share(settings, found.gpu)
    weights, token = weight_bytes(settings, found), kv_bytes(settings, found)
    if not (gpu and share and weights and token and found.max_length) or not (card or settings.kv_memory):
        return None
    weights += added_bytes(settings, found)
    profile = GPU_PROFILES[settings.profile]
    rows = settings.max_running_requests or profile.max_running_requests
    longest = min(settings.max_model_len or found.max_length, found.max_length)
    whole = 0 if settings.chunked_prefill else longest
    tokens = settings.max_batched_tokens or max(profile.max_batched_tokens, rows, whole)
    block_size = settings.block_size or _BLOCK_SIZE
    kinds = found.kv_tables
    block = token * block_size // table_count(kinds)
    chunk = _STEPS * tokens
    columns = table_count(kinds) * math.ceil(longest / block_size)
    working = _working(settings, gpu, share, rows, tokens, longest, columns) + max(_TRANSFER, block)
    count = graph_count(rows, tokens) * (2 if settings.max_loaded_adapters else 1)  # with adapters, and without
    graphs = 0 if settings.cuda_graphs is False or not gpu.graphs else _GRAPHS + _GRAPH * count
    memory = card.memory if card else 0
    reserve = _CONTEXT + max(_RESERVE, int(memory * _RESERVE_SHARE)) + min(int(weights * _ROUNDING), _MOST_ROUNDING)
    adapters = _adapters(settings, share)
    room = memory - weights - adapters - working - graphs - reserve
    useful = rows * blocks_held(kinds, longest, chunk, block_size) * block
    useful += most_useful(rows, found.state_bytes, settings.state_snapshots)
    pool = settings.kv_memory or max(0, min(room, useful))
    states = state_slots(
        pool,
        rows,
        found.state_bytes,
        rows_given=settings.max_running_requests is not None,
        snapshots=settings.state_snapshots,
        caching=settings.prefix_caching,
    ).nbytes
    blocks = max(0, pool - states) // block
    kv = blocks * block + states
    length = longest
    if not settings.max_model_len:
        length = max(longest_held(kinds, blocks, chunk, block_size, longest), min(longest, block_size))
    return GpuEstimate(
        card=card,
        weights=weights,
        adapters=adapters,
        kv=kv,
        working=working,
        graphs=graphs,
        reserve=reserve,
        room=room,
        sequence=blocks_held(kinds, length, chunk, block_size) * block + states,
        block=block,
        block_size=block_size,
        length=length,
        states=states,
        tables=kinds,
        chunk=chunk,
    )


def _share(settings: EngineSettings, gpu: GpuReport | None) -> GpuShare | None:
    shares = gpu.shares if gpu else ()
    return next((share for share in shares if share.ranks == settings.tensor_parallel_size), None)


def _kind(settings: EngineSettings) -> str:
    if settings.quantization == "auto":
        return settings.dtype
    return settings.quantization if settings.dtype != "float32" else f"{settings.quantization} {settings.dtype}"


def _element_bytes(settings: EngineSettings) -> int:
    return 4 if settings.dtype == "float32" else 2


def _working(
    settings: EngineSettings, gpu: GpuReport, share: GpuShare, rows: int, tokens: int, longest: int, columns: int
) -> int:
    """Buffers of steps, without those of KV transfers. The row table has one row more than there are sequences."""
    size = _element_bytes(settings)
    eight_bits = share.widest if _kind(settings) in share.fp8 else 0
    ordered = size * share.widest * max(tokens, rows) if _kind(settings) in share.ordered else 0
    ids = longest + columns + 8
    return (
        share.fixed
        + ordered
        + gpu.position * longest
        + tokens * (share.token + size * share.token_elements + eight_bits)
        + (rows + 1) * (share.row + size * gpu.row_elements + _ID_BYTES * ids)
        + _adapted(settings, gpu, share, max(tokens, rows), rows)
        + (rows + 1 + _PENALISED) * _added(settings)
    )


def _added(settings: EngineSettings) -> int:
    """Bytes of added tokens in logits, sampler and masks of a row, with a tile more of the vocabulary."""
    added = added_tokens(settings)
    return _ADDED * added + _SAMPLED_TILE if added else 0


def _rank(settings: EngineSettings) -> int:
    """The largest rank of an adapter, padded."""
    return math.ceil(settings.max_adapter_rank / _UNIT) * _UNIT


def _adapters(settings: EngineSettings, share: GpuShare) -> int:
    """The slots of adapters, each for the GPU's part of one that changes all matrices with the largest rank."""
    if not settings.max_loaded_adapters:
        return 0
    # A rank has a column of the embedding's change and a row of the head's for each token.
    elements = _rank(settings) * (share.adapter_elements + 2 * added_tokens(settings)) + share.adapter_fixed
    return settings.max_loaded_adapters * elements * _element_bytes(settings) + _TILES


def _adapted(settings: EngineSettings, gpu: GpuReport, share: GpuShare, tokens: int, rows: int) -> int:
    """Buffers of steps with adapters: products, which few tokens have in up to 16 parts; tokens in order of slots."""
    slots = settings.max_loaded_adapters
    if not slots:
        return 0
    products = max(tokens, min(_MOST_PARTS * tokens, _PARTED)) * _rank(settings) * share.adapter_products
    places = tokens + _PLACES * min(tokens, slots)
    own = _ID_BYTES * (tokens + 2 * rows + 2 * (places + slots))
    experts = gpu.adapter_experts
    if experts is None:
        return own + _ID_BYTES * products
    choices, pairs = tokens * experts.chosen, slots * experts.count
    parted = max(choices, min(_MOST_PARTS * choices, _PARTED_CHOICES)) * _rank(settings) * experts.products
    few = min(choices, _FEW_CHOICES * experts.count)  # more of them are in larger blocks
    ordered = max(_block_places(few, pairs, _FEW_PLACES), _block_places(choices, pairs, _PLACES) * (few < choices))
    ids = choices + pairs + ordered + ordered // _FEW_PLACES
    return (
        own
        + _ID_BYTES * (max(products, parted) + ids)
        + _element_bytes(settings) * choices * share.adapter_choice_elements
    )


def _block_places(choices: int, pairs: int, rows: int) -> int:
    """Most places of blocks of `rows` choices of a pair of an adapter and an expert."""
    used = min(choices, pairs)
    return rows * (used + (choices - used) // rows)


def graph_count(rows: int, tokens: int) -> int:
    """Number of CUDA graphs that a server may capture: as many as `launch_sizes` has sizes."""
    most = min(rows, tokens)
    decodes = {2**i for i in range(most.bit_length())} | {most} | set(range(8, most, 8))
    return len(decodes) + sum(1 + _sequence_counts(n, rows) for n in _token_counts(min(tokens, 2048), tokens))


def _token_counts(most: int, tokens: int) -> list[int]:
    """Padded numbers of tokens of steps with prompts."""
    small = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    found = [*small, *range(768, most + 256, 256)]
    first = next((at for at, count in enumerate(found) if count >= most), len(found) - 1)
    return sorted({min(count, tokens) for count in found[: first + 1]})


def _sequence_counts(tokens: int, rows: int) -> int:
    """How many padded numbers of sequences steps of so many tokens have: 8, 64, ... and the maximum."""
    most, count, found = min(tokens, rows), 8, 1
    while count < most:
        count, found = count * 8, found + 1
    return found
