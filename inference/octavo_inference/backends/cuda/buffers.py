"""Buffers of a step, allocated once: a running server cannot run out of memory for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.adapter_layout import choice_elements, choice_width, products_width
from octavo_inference.backends.cuda.collectives import gathered_size
from octavo_inference.backends.cuda.kernels import adapter_configs
from octavo_inference.backends.cuda.kernels.decode_parts import (
    PART_FIELDS,
    PROGRAMS,
    most_parts,
    most_split,
    shares_for,
)
from octavo_inference.backends.cuda.kernels.expert_configs import block_rows, token_steps
from octavo_inference.backends.cuda.kernels.expert_sort import most_blocks
from octavo_inference.backends.cuda.kernels.launch_configs import chunk_tile
from octavo_inference.backends.cuda.kernels.router import parts_size
from octavo_inference.backends.cuda.kernels.rows import HEADER, LONGEST
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size
from octavo_inference.backends.cuda.mixer_sizes import mixer_sizes
from octavo_inference.backends.cuda.pooling import ITEM
from octavo_inference.backends.cuda.widths import adds_outputs, widest_mlp
from octavo_inference.core.model_input import RULES_WIDTH, SAMPLING, TableField, mask_width
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import Experts, GatedDelta, ShortConv

T = TypeVar("T")

_CHANGES = 1 << 16


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of the largest step: query tokens, sequences (and sample rows), positions of a sequence, block size.

    `processors` is the device's number of multiprocessors. It determines into how many parts attention splits keys.
    `ranks` is the number of GPUs that share the model, `vocab` the size of its vocabulary. `groups` is the number of
    block tables of a sequence. A step may use `adapters` slots of adapters of up to `adapter_rank`.
    """

    tokens: int
    rows: int
    positions: int
    block_size: int
    processors: int
    vocab: int
    ranks: int = 1
    groups: int = 1
    adapters: int = 0
    adapter_rank: int = 0

    @property
    def columns(self) -> int:
        """Blocks of the longest sequence in one of its tables."""
        return -(-self.positions // self.block_size)

    def shares(self, readers: int, programs: int = PROGRAMS) -> int:
        """Number of equal shares that attention of decodes aims at (`kernels.decode_parts`), if each has `readers`."""
        return shares_for(kv_heads=readers, processors=self.processors, programs=programs)


@dataclass(frozen=True, slots=True)
class BufferShape:
    """Size of the buffer in bytes."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of device memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ActivationCopies:
    """Copies of activations that a model's products read: in fp8, and with their columns in another order."""

    fp8: bool = False
    ordered: bool = False


NO_COPIES = ActivationCopies()


@dataclass(frozen=True, slots=True)
class StepBuffers(Generic[T]):
    """All buffers of a step: their shapes, or the tensors themselves.

    `table`, `changes` and `inputs` are flat int32 (`rows.DeviceRows`, `inputs.Stage`); sums and the residual stream are
    float32. `fp8_activations` and `ordered_activations` are `ActivationCopies`, empty where no product reads them.
    `partial` holds the results of attention's parts, `gathered` the logits of all ranks. `pool_items` and `pool_sums`
    are those of `pooling.Pooler`. `query_latent`, `queries`, `absorbed` and `latents` are those of latent attention
    (`mixer_sizes`), the buffers from `router_sums` to `expert_tokens` those of mixtures of experts (`expert_shapes`),
    those from `state_inputs` to `state_solved` of state layers (`state_shapes`), without elements in models that have
    none. Those from `adapter_slots` to `adapter_products` are those of adapters (`adapter_shapes`), without elements
    where steps use none. `added` holds the outputs that are added to those in `projected`: of a state layer beside
    attention, and of an MLP parallel to it.
    """

    fp8_activations: T
    ordered_activations: T
    table: T
    changes: T
    inputs: T
    tokens: T
    positions: T
    slots: T
    residual: T
    normed: T
    qkv: T
    query_latent: T
    queries: T
    q: T
    absorbed: T
    latents: T
    attended: T
    partial: T
    projected: T
    added: T
    gate_up: T
    activated: T
    router_sums: T
    expert_ids: T
    expert_weights: T
    shared_weights: T
    expert_totals: T
    expert_places: T
    expert_blocks: T
    expert_activated: T
    expert_outputs: T
    expert_tokens: T
    state_inputs: T
    convolved: T
    state_mixed: T
    state_solved: T
    adapter_slots: T
    adapter_samples: T
    adapter_totals: T
    adapter_places: T
    adapter_blocks: T
    adapter_choices: T
    adapter_choice_totals: T
    adapter_choice_places: T
    adapter_choice_blocks: T
    adapter_products: T
    sampled: T
    logits: T
    gathered: T
    pool_items: T
    pool_sums: T

    def __iter__(self) -> Iterator[T]:
        return (getattr(self, field.name) for field in fields(self))


def buffer_shapes(
    config: ModelConfig, limits: StepLimits, dtype: torch.dtype, copies: ActivationCopies = NO_COPIES
) -> StepBuffers[BufferShape]:
    """Shape of each buffer. `dtype` is that of activations.

    `copies`: those of activations that the model's products read.
    """
    tokens, rows = limits.tokens, limits.rows
    mixer, latent, inner = mixer_sizes(config), config.latent, widest_mlp(config)
    state = 0 if config.state is None else config.state.inner
    widest = max(config.hidden, mixer.attended, mixer.query_latent, state, inner)
    rotated, rank = (config.head_dim, 0) if latent is None else (latent.rope_dim, latent.kv_rank)

    def flat(size: int, dtype: torch.dtype = torch.int32) -> BufferShape:
        return BufferShape((size,), dtype)

    def by_token(*shape: int, dtype: torch.dtype = dtype) -> BufferShape:
        return BufferShape((tokens, *shape), dtype)

    return StepBuffers(
        fp8_activations=flat(tokens * widest * copies.fp8, torch.uint8),
        ordered_activations=flat(max(tokens, rows) * widest * copies.ordered, dtype),
        table=flat(_table_size(limits)),
        changes=flat(changes_size(limits)),
        inputs=flat(input_places(limits).end),
        tokens=by_token(dtype=torch.int32),
        positions=by_token(dtype=torch.int32),
        slots=BufferShape((limits.groups, tokens), torch.int64),
        residual=by_token(config.hidden, dtype=torch.float32),
        normed=by_token(config.hidden),
        qkv=by_token(mixer.qkv),
        query_latent=by_token(mixer.query_latent),
        queries=by_token(mixer.queries),
        q=by_token(config.heads, rotated),
        absorbed=by_token(config.heads, rank),
        latents=by_token(config.heads, rank),
        attended=by_token(config.heads, config.value_dim),
        partial=flat(_partial_elements(config, limits), torch.float32),
        projected=by_token(config.hidden),
        added=by_token(config.hidden if adds_outputs(config) else 0),
        gate_up=by_token(2 * inner),
        activated=by_token(inner),
        **expert_shapes(config, tokens, dtype, adapted=limits.adapters > 0),
        **state_shapes(config, tokens, dtype),
        **adapter_shapes(config, limits, dtype),
        sampled=BufferShape((rows, config.hidden), dtype),
        logits=BufferShape((rows, config.vocab), torch.float32),
        gathered=flat(gathered_size(config.vocab, rows, limits.ranks), torch.float32),
        pool_items=flat(rows * ITEM),
        pool_sums=BufferShape((rows, config.hidden), torch.float32),
    )


def expert_shapes(config: ModelConfig, tokens: int, dtype: torch.dtype, *, adapted: bool) -> dict[str, BufferShape]:
    """Buffers of mixtures of experts for steps of up to `tokens` tokens, which may be `adapted`.

    Logits of the router; the choices of tokens and their weights; their order by expert; rows between the products.
    `expert_outputs` first holds what adapters add to the products with gate and up. `expert_tokens` [layers, experts]
    int64 counts tokens for as long as the server runs.
    """
    experts = config.experts or Experts(0, 0, 0)
    count, choices = experts.count, tokens * experts.chosen
    most, places = sort_sizes(tokens, experts, dtype)

    def integers(*shape: int, dtype: torch.dtype = torch.int32) -> BufferShape:
        return BufferShape(shape, dtype)

    return {
        "router_sums": BufferShape((parts_size(tokens, count + 1 if count else 0),), torch.float32),
        "expert_ids": integers(tokens, experts.chosen),
        "expert_weights": BufferShape((tokens, experts.chosen), torch.float32),
        "shared_weights": BufferShape((tokens if count else 0,), torch.float32),
        "expert_totals": integers(count),
        "expert_places": integers(places),
        "expert_blocks": integers(most),
        "expert_activated": BufferShape((choices, experts.intermediate), dtype),
        "expert_outputs": BufferShape((choices, choice_elements(config) if adapted else config.hidden), dtype),
        "expert_tokens": integers(config.layers if count else 0, count, dtype=torch.int64),
    }


def state_shapes(config: ModelConfig, tokens: int, dtype: torch.dtype) -> dict[str, BufferShape]:
    """Buffers of state layers for steps of up to `tokens` tokens.

    Inputs, those that the convolution has mixed, outputs; the inverses of chunks of gated delta nets.
    """
    layer = config.state
    shapes = {
        "state_inputs": (0 if layer is None else sum(layer.input_rows),),
        "convolved": (0 if layer is None or isinstance(layer, ShortConv) else layer.shape.channels,),
        "state_mixed": (0 if layer is None else layer.inner,),
        "state_solved": (layer.value_heads if isinstance(layer, GatedDelta) else 0, chunk_tile(dtype).tokens),
    }
    return {name: BufferShape((tokens, *shape), dtype) for name, shape in shapes.items()}


def adapter_shapes(config: ModelConfig, limits: StepLimits, dtype: torch.dtype) -> dict[str, BufferShape]:
    """Buffers of adapters: slots of query tokens and sample rows, their order by slot, products with `down`."""
    slots, tokens = limits.adapters, max(limits.tokens, limits.rows) if limits.adapters else 0
    steps = adapter_configs.row_steps(tokens) if tokens else []
    rows = [adapter_configs.block_rows(step, dtype) for step in steps]
    blocks = [most_blocks(step, slots, block) for step, block in zip(steps, rows, strict=True)]
    width = products_width(config, limits.adapter_rank)
    products = adapter_configs.products_size(tokens, width, dtype) if tokens else 0
    choices, pairs, choice_places, choice_blocks = _choice_sizes(config.experts, limits, dtype)
    if choices:
        products = max(products, adapter_configs.choice_products(choices, choice_width(config, limits.adapter_rank)))

    def integers(count: int) -> BufferShape:
        return BufferShape((count,), torch.int32)

    return {
        "adapter_slots": integers(tokens),
        "adapter_samples": integers(limits.rows if slots else 0),
        "adapter_totals": integers(slots),
        "adapter_places": integers(max((b * r for b, r in zip(blocks, rows, strict=True)), default=0)),
        "adapter_blocks": integers(max(blocks, default=0)),
        "adapter_choices": integers(choices),
        "adapter_choice_totals": integers(pairs),
        "adapter_choice_places": integers(choice_places),
        "adapter_choice_blocks": integers(choice_blocks),
        "adapter_products": BufferShape((products,), torch.float32),
    }


def _choice_sizes(experts: Experts | None, limits: StepLimits, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Choices of the largest step, pairs of an adapter and an expert, and most places and blocks of choices by pair."""
    if experts is None or not limits.adapters:
        return 0, 0, 0, 0
    pairs, steps = (
        limits.adapters * experts.count,
        adapter_configs.choice_steps(limits.tokens, experts.chosen, experts.count),
    )
    counts = [tokens * experts.chosen for tokens in steps]
    rows = [adapter_configs.choice_rows(count, experts.count, dtype) for count in counts]
    blocks = [most_blocks(count, pairs, block) for count, block in zip(counts, rows, strict=True)]
    return counts[-1], pairs, max(b * r for b, r in zip(blocks, rows, strict=True)), max(blocks)


def sort_sizes(tokens: int, experts: Experts, dtype: torch.dtype) -> tuple[int, int]:
    """Most blocks, and most places of blocks, of a step of up to `tokens` tokens."""
    if experts.count == 0:
        return 0, 0
    sizes = [n for n in (*token_steps(experts.chosen, experts.count), tokens) if n <= tokens]
    rows = [block_rows(n * experts.chosen, experts.count, dtype) for n in sizes]
    blocks = [most_blocks(n * experts.chosen, experts.count, r) for n, r in zip(sizes, rows, strict=True)]
    return max(blocks), max(b * r for b, r in zip(blocks, rows, strict=True))


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A part of the table's buffer: its offset, and the width of its rows."""

    start: int
    width: int


def table_places(limits: StepLimits) -> dict[TableField, TablePlace]:
    """Offsets of the row table's parts. It has one row more than the maximum number of sequences, for padding."""
    widths: dict[TableField, int] = {
        "tokens": limits.positions,
        "blocks": limits.groups * limits.columns,
        "sampling": len(SAMPLING),
        "rules": aligned(RULES_WIDTH),
        "mask": aligned(mask_width(limits.vocab)),
    }
    starts = itertools.accumulate((aligned((limits.rows + 1) * width) for width in widths.values()), initial=0)
    return {field: TablePlace(start, width) for (field, width), start in zip(widths.items(), starts, strict=False)}


@dataclass(frozen=True, slots=True)
class InputPlaces:
    """Offset and length of each of a step's inputs in its buffer (see `inputs.Inputs`), in integers."""

    row: int
    query_start: int
    seq_len: int
    bounds: int
    query: int
    sample_row: int
    position: int
    logprobs: int
    report_ids: int
    parts: int
    adapter: int
    end: int


def input_places(limits: StepLimits) -> InputPlaces:
    """Places of the inputs, padded: one integer of each kind per row, one more `query_start`, two `bounds`; parts.

    The last are the slots of adapters, which only steps with adapters have.
    """
    one, more = aligned(limits.rows), aligned(limits.rows + 1)
    starts = itertools.accumulate([one, more, one, aligned(2), one, one, one, one, one], initial=0)
    row, query_start, seq_len, bounds, query, sample_row, position, logprobs, report_ids, parts = starts
    most = most_parts(limits.rows, shares=limits.shares(1), longest=limits.positions)
    adapter = parts + aligned(PART_FIELDS * most)
    end = adapter + (one if limits.adapters else 0)
    return InputPlaces(
        row, query_start, seq_len, bounds, query, sample_row, position, logprobs, report_ids, parts, adapter, end
    )


def changes_size(limits: StepLimits) -> int:
    """Integers of the row table that one copy sends to the device: the masks of all rows, with their headers, or more.

    So the masks of a step need no second copy. The copies of a step follow its forward pass, and the host would wait.
    """
    width = mask_width(limits.vocab)
    return max(_CHANGES, limits.rows * (width + HEADER * -(-width // LONGEST)))


def aligned(size: int) -> int:
    """Round up to 4 integers (16 bytes): for unaligned pointers Triton compiles another variant of a kernel."""
    return -(-size // 4) * 4


def shapes_bytes(shapes: StepBuffers[BufferShape]) -> int:
    """Bytes that `allocate` allocates."""
    return sum(shape.bytes for shape in shapes)


def allocate(shapes: StepBuffers[BufferShape], device: torch.device) -> StepBuffers[Torch]:
    """Allocate the buffers, filled with zeros."""
    return StepBuffers(*(torch.zeros(shape.shape, dtype=shape.dtype, device=device) for shape in shapes))


def _table_size(limits: StepLimits) -> int:
    return max(place.start + (limits.rows + 1) * place.width for place in table_places(limits).values())


def _partial_elements(config: ModelConfig, limits: StepLimits) -> int:
    mixer = mixer_sizes(config)
    shares = limits.shares(mixer.readers, mixer.programs)
    if most_parts(limits.rows, shares=shares, longest=limits.positions) == limits.rows:
        return 0
    return partial_size(parts=most_split(shares=shares), heads=config.heads, head_dim=mixer.summed)
