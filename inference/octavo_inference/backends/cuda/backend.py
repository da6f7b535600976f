"""The CUDA backend: a copy of the row table, `Decoder` and `Sampler` behind the engine's protocol.

With TRITON_INTERPRET=1 the same code runs on the CPU, and Triton interprets the kernels one program at a time. This is
slow, and it checks everything except speed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_common.failpoints import Failpoints
from octavo_inference.backends.cuda.adapter_layout import adapted_matrices
from octavo_inference.backends.cuda.adapters import DeviceAdapters, PinnedAdapter
from octavo_inference.backends.cuda.buffers import StepBuffers, StepLimits, allocate, buffer_shapes
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup
from octavo_inference.backends.cuda.decoder import Decoder
from octavo_inference.backends.cuda.device import FP8_CAPABILITY, Device, dotted, fp8_products, watched
from octavo_inference.backends.cuda.graphs import Capture, Graph, Graphs, first_line, graph_room, graph_sizes
from octavo_inference.backends.cuda.inputs import Inputs, LaunchSize, Stage, size_of
from octavo_inference.backends.cuda.kernels.adapter_configs import choice_steps
from octavo_inference.backends.cuda.kernels.block_copy import copy_blocks
from octavo_inference.backends.cuda.kernels.expert_configs import token_steps
from octavo_inference.backends.cuda.kernels.tuned_configs import find_tiles
from octavo_inference.backends.cuda.launch_list import LaunchList, LaunchLists, record
from octavo_inference.backends.cuda.launch_sizes import padded
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.backends.cuda.mixer_sizes import mixer_sizes
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.backends.cuda.pool import KvPool, allocate_latents, allocate_pool
from octavo_inference.backends.cuda.pooling import Pooler
from octavo_inference.backends.cuda.rows import DeviceRows
from octavo_inference.backends.cuda.sampling import Chosen, Sampler
from octavo_inference.backends.cuda.scoring import PromptScorer, Scored
from octavo_inference.backends.cuda.state_pool import DeviceStates, StateTransfer
from octavo_inference.backends.cuda.transfer import Transfer
from octavo_inference.backends.cuda.warmup import rehearsal
from octavo_inference.backends.cuda.weight_loading import activation_copies, upload
from octavo_inference.common.errors import DeviceError, ModelError, SettingsError, UnsupportedModelError
from octavo_inference.config.engine import KvDtype
from octavo_inference.core.model_input import Float32, RowChange, RowSamples, RowStep, StepResult
from octavo_inference.core.request import MAX_LOGPROBS
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.features import require_features
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.positions import alibi_slopes
from octavo_inference.models.weights import Weights

log = logging.getLogger(__name__)

DEFAULT_BLOCK_SIZE = 16
LARGEST_HEAD, _LARGEST_LATENT = 256, 512
# What the kernels compute besides the plain decoder (models/features.py).
FEATURES = frozenset(
    {
        "latent attention",
        "a mixture of experts",
        "a clamped activation of experts",
        "an MLP without gate",
        "attention sinks",
        "the activation gelu",
        "the activation relu",
        "the activation relu2",
        "Mamba-2 layers",
        "gated delta layers",
        "short convolutions",
        "layers without attention or MLP",
        "layers of unlike sizes",
        "attention beside a state layer",
        "gated attention",
        "LayerNorm",
        "norms after the residual sum",
        "no norm before attention and MLP",
        "a norm of the embedding",
        "norms over all heads",
        "norms after the rotation",
        "clipped queries and keys",
        "a temperature of queries",
        "parallel attention and MLP",
        "the activation xielu",
        "learned positions",
        "ALiBi",
        "a bias of the head",
        "chunked attention",
    }
)
_NO_IDS = np.empty(0, np.int32)
_NOTHING = RowStep([], _NO_IDS, np.zeros(1, np.int32), _NO_IDS, RowSamples(_NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS, []))
"""A step without sequences. Padded to a graph's size it computes as much as a full step, and stores nothing."""

_KV_TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class CudaStep:
    """A launched step. `pooled` are the sums that it completed. `check` tests the device after an error."""

    chosen: Chosen
    pooled: Torch | None
    scored: Scored | None
    check: Callable[[], None]

    def choose(self, masks: Sequence[RowChange]) -> None:  # noqa: ARG002 -- see below
        """Raises `RuntimeError`: the step has sampled already."""
        raise RuntimeError("the masks of a step without guided rows")

    def collect(self) -> StepResult:
        """Wait for the result. Raises `DeviceLostError` when the GPU is lost."""
        with watched(self.check):
            result = self.chosen.collect()
            if self.scored is not None:
                result = replace(result, scores=self.scored.collect())
        return result if self.pooled is None else replace(result, pooled=self.pooled.numpy())


@dataclass(slots=True)
class GuidedCudaStep:
    """A launched step that samples once it has the masks of its guided rows: `sample` launches that."""

    sample: Callable[[Sequence[RowChange]], CudaStep]
    sampled: CudaStep | None = None

    def choose(self, masks: Sequence[RowChange]) -> None:
        """Send the masks and launch the sampler, behind the forward pass."""
        self.sampled = self.sample(masks)

    def collect(self) -> StepResult:
        """Wait for the result. Raises `DeviceLostError` when the GPU is lost."""
        if self.sampled is None:
            raise RuntimeError("a step with guided rows is collected before its masks are there")
        return self.sampled.collect()


class CudaBackend:
    """`Backend` on one GPU. All its memory is allocated at creation.

    `graphs` holds the CUDA graphs of steps; None where every step is launched kernel by kernel.
    """

    def __init__(
        self,
        device: Device,
        decoder: Decoder,
        rows: DeviceRows,
        sampler: Sampler,
        scorer: PromptScorer,
        failpoints: Failpoints,
        capture: Capture | None,
    ) -> None:
        kind = f", {decoder.context.pool.data.dtype} KV".replace("torch.", "")
        self.name = f"cuda ({device.name}{kind})"
        self.layout = decoder.context.layout
        self.block_size = decoder.context.limits.block_size
        self.num_blocks = decoder.context.pool.data.shape[1]
        self.state_slots = decoder.context.states.data.shape[1]
        self.vocab_size = decoder.context.config.vocab
        self.hidden_size = decoder.context.config.hidden
        self.adapter_slots = decoder.context.limits.adapters
        self.steps_ahead = 1
        self.decode_runs = False
        self.max_prompt_scores: int | None = None
        self._device = device.torch
        self._failpoints = failpoints
        self._decoder = decoder
        self._rows = rows
        self._sampler = sampler
        self._pooler = Pooler(decoder.context.buffers.pool_items, decoder.context.buffers.pool_sums)
        self._scorer = scorer
        limits, sizes = decoder.context.limits, mixer_sizes(decoder.context.config)
        self._stage = Stage(decoder.context.buffers.inputs, limits, limits.shares(sizes.readers, sizes.programs))
        self._transfer = Transfer(decoder.context.pool)
        self._state_transfer = StateTransfer(decoder.context.states)
        self._lists = LaunchLists(self._list)
        self.graphs: Graphs | None = None
        if capture is not None:
            first, later = graph_sizes(decoder.context.limits)
            room = graph_room(decoder.context.limits)
            self.graphs = Graphs(
                partial(self._record, capture), first, later, room, agreed=self._agreed, failed=self._capture_failed
            )

    @classmethod
    def create(
        cls,
        config: ModelConfig,
        weights: Weights,
        *,
        device: Device,
        num_blocks: int,
        block_size: int = DEFAULT_BLOCK_SIZE,
        max_batched_tokens: int,
        max_running: int,
        max_model_len: int,
        state_slots: int = 0,
        adapter_slots: int = 0,
        max_adapter_rank: int = 0,
        dtype: torch.dtype,
        kv_dtype: KvDtype = "auto",
        quantization: Quantization = "auto",
        progress: Callable[[int, int], None] | None = None,
        failpoints: Failpoints | None = None,
        group: RankGroup = ALONE,
        capture: Capture | None = None,
    ) -> CudaBackend:
        """Load the weights onto the device and allocate all other device memory.

        In a `group` of several ranks, config and weights are the rank's shard, and every step waits for the other
        ranks. `state_slots` of a model with state layers: one for each row, then those of snapshots. There
        are `adapter_slots` for adapters of up to `max_adapter_rank`. `capture` records graphs (`graphs.CudaCapture`).
        `progress` receives the bytes of weights loaded and their total. Raises `ModelError` and `SettingsError` for
        requests that the kernels or the GPU do not support.
        """
        check(config, device, kv_dtype)
        if config.learned_positions and max_model_len > config.learned_positions:
            raise SettingsError(
                f"max_model_len is {max_model_len}; the model has embeddings of {config.learned_positions} positions",
                "max_model_len",
            )
        if device.torch.type == "cuda":
            # By default cuBLAS may add partial sums in bfloat16.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        layout = pool_layout(config)
        limits = limits_of(
            device,
            max_batched_tokens,
            max_running,
            max_model_len,
            block_size,
            config.vocab,
            len(layout.groups),
            group.size,
            adapter_slots,
            max_adapter_rank,
        )
        ropes = {rope: rope.table(max_model_len) for rope in map(config.rope, range(config.layers)) if rope is not None}
        tables = {rope: torch.from_numpy(table).to(device.torch) for rope, table in ropes.items()}
        fp8, tiles = fp8_products(device, dtype), find_tiles(device.name)
        copies = activation_copies(config, weights, dtype=dtype, quantization=quantization, fp8=fp8)
        log.info(
            "tiles of products: %s",
            f"measured on {tiles.card}" if tiles.card else f"by rule, as no table is of {device.name}",
        )
        buffers = allocate(buffer_shapes(config, limits, dtype, copies), device.torch)
        rows = DeviceRows(buffers.table, buffers.changes, limits)
        loaded = upload(
            config,
            weights,
            device=device.torch,
            dtype=dtype,
            quantization=quantization,
            progress=progress,
            fp8=fp8,
            fp8_activations=buffers.fp8_activations,
            ordered_activations=buffers.ordered_activations,
            tiles=tiles,
        )
        context = LayerContext(
            config,
            tiles,
            _pool(config, layout.depth, num_blocks, block_size, kv_type(kv_dtype, dtype), device.torch),
            tuple(None if rope is None else tables[rope] for rope in map(config.rope, range(config.layers))),
            buffers,
            rows.table,
            limits,
            layout,
            DeviceStates.allocate(config, slots=max(state_slots, max_running), device=device.torch),
            group,
            _slopes(config, group, device.torch),
            _adapters(config, weights, buffers, limits, dtype, device.torch),
        )
        decoder = Decoder(context, loaded)
        sampler = Sampler(rows.table, vocab=config.vocab, max_rows=max_running, max_logprobs=MAX_LOGPROBS)
        scorer = PromptScorer(decoder, max_logprobs=MAX_LOGPROBS)
        return cls(device, decoder, rows, sampler, scorer, failpoints or Failpoints(""), capture)

    def warm_up(self) -> None:
        """Compile and load all kernels and capture graphs, so that the first requests do not wait for that."""
        experts = self._decoder.context.config.experts
        limits, changes, adapted = self._decoder.context.limits, list[int](), list[int]()
        if experts is not None:
            changes = token_steps(experts.chosen, experts.count)
            adapted = choice_steps(limits.tokens, experts.chosen, experts.count)
        for step in rehearsal(limits, changes, adapted):
            self.launch(step).collect()
        self.copy_blocks([(0, 1)])
        self.from_host(self.to_host([0]), [0])
        if self.state_slots > 1:
            self.copy_states([(0, 1)])
            self.states_from_host(self.states_to_host([0]), [0])
        self._decoder.context.buffers.expert_tokens.zero_()
        if self.graphs is not None:
            with self._watched():
                self.graphs.start()

    def prepare_adapter(self, adapter: Adapter) -> PinnedAdapter:
        """Bring an adapter into the form of a slot, in any thread. Raises `ModelError` for one that does not fit."""
        return self._adapters.prepare(adapter)

    def load_adapter(self, slot: int, adapter: PinnedAdapter | None) -> None:
        """Put an adapter into a slot, or empty it, for later launches. Does not wait for the device."""
        with self._watched():
            self._adapters.load(slot, adapter)

    def launch(self, step: RowStep) -> CudaStep | GuidedCudaStep:
        """Launch a step; the device runs it after the earlier steps. Raises `DeviceLostError` when the GPU is lost."""
        with self._watched():
            self._failpoints.hit("gpu.step")
            self._rows.apply(step.changes)
            size = padded(size_of(step), self._decoder.context.limits)
            captured = None if self.graphs is None else self.graphs.choose(size)
            size = captured or size
            self._stage.load(step, size)
            if self.graphs is None or captured is None:
                self._lists.run(size)
            else:
                self.graphs.replay(captured)
            inputs = self._stage.inputs(size)
            pooled = None
            if step.pooling is not None:
                # Graphs do not contain pooling. The last hidden states are valid until the next step.
                pooled = self._pooler.pool(self._decoder.states(size.tokens), step.pooling)
            sample = partial(self._sample, step, self._decoder.logits(size.samples), inputs, pooled)
            return GuidedCudaStep(sample) if step.guided else sample([])

    def _sample(
        self, step: RowStep, logits: Torch, inputs: Inputs, pooled: Torch | None, masks: Sequence[RowChange]
    ) -> CudaStep:
        """Launch what follows the forward pass of a step."""
        with self._watched():
            self._rows.apply(masks)
            if any(step.sample.penalties):
                # Graphs do not contain changes of logits. They are made after replay, and tokens are sampled again.
                self._sampler.choose(self._sampler.adjust(logits, step.sample), inputs)
            chosen = self._sampler.send(logits, inputs, step.sample)
            # Last: it writes into the buffer of the logits.
            scored = self._scorer.send(step.scores, adapted=len(step.adapter) > 0) if step.scores else None
            return CudaStep(chosen, pooled, scored, self._synchronize)

    def logits(self, step: RowStep) -> Float32:
        """Run the step without sampling: logits [R, vocab] of the sample rows. For tests and evaluation.

        In the size of `launch`: for another one a library may add in another order, which bfloat16 shows.
        """
        with self._watched():
            self._rows.apply(step.changes)
            size = padded(size_of(step), self._decoder.context.limits)
            self._stage.load(step, size)
            self._decoder.forward(self._stage.inputs(size))
            logits: Float32 = self._decoder.logits(len(step.sample.row)).cpu().numpy().copy()
            return logits

    def part_seconds(self) -> dict[str, float]:
        """Not measured."""
        return {}

    def expert_tokens(self) -> NDArray[np.int64] | None:
        """Tokens that each expert of each layer computed since the start [layers, experts]; None without experts.

        Waits for the device.
        """
        counts = self._decoder.context.buffers.expert_tokens
        if counts.numel() == 0:
            return None
        with self._watched():
            found: NDArray[np.int64] = counts.cpu().numpy().copy()
        return found

    def idle(self) -> bool:
        """Capture one more missing graph; True while others are missing."""
        with self._watched():
            return self.graphs is not None and self.graphs.idle()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all their layers."""
        with self._watched():
            pool = self._decoder.context.pool
            for together in independent(pairs):
                on_device = self._on_device(together)
                for tensor in pool.tensors:
                    copy_blocks(tensor, on_device)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all their layers."""
        with self._watched():
            ids = self._on_device(list(blocks))
            for tensor in self._decoder.context.pool.tensors:
                # Viewed as bytes: torch cannot fill float8.
                tensor.view(torch.uint8).index_fill_(1, ids.long(), 0)

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks to the host: [block, bytes]."""
        with self._watched():
            return self._transfer.to_host(blocks)

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        with self._watched():
            self._transfer.from_host(saved, blocks)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of whole slots (source, destination), all layers."""
        with self._watched():
            copy_blocks(self._decoder.context.states.data, self._on_device(pairs))

    def states_to_host(self, slots: Sequence[int]) -> NDArray[np.generic]:
        """Copy the states of whole slots to the host: [slot, layers, elements]."""
        with self._watched():
            return self._state_transfer.to_host(slots)

    def states_from_host(self, saved: NDArray[np.generic], slots: Sequence[int]) -> None:
        """Copy rows returned by `states_to_host` into as many slots."""
        with self._watched():
            self._state_transfer.from_host(saved, slots)

    @property
    def _adapters(self) -> DeviceAdapters:
        found = self._decoder.context.adapters
        if found is None:
            raise ModelError("the backend of this model takes no adapters")
        return found

    def _compute(self, inputs: Inputs) -> None:
        """Run forward and sampling: the work that a graph records."""
        self._sampler.choose(self._decoder.forward(inputs), inputs)

    def _agreed(self, ok: bool) -> bool:
        """Return True if `ok` holds on all ranks. Waits for them."""
        if self._decoder.context.group.size == 1:
            return ok
        votes = torch.full((1,), float(ok), device=self._device)
        self._decoder.context.group.all_reduce(votes)
        return int(votes.item()) == self._decoder.context.group.size

    def _capture_failed(self, error: Exception) -> None:
        """Continue without the graph.

        Raises when the device is lost, or when other ranks wait in a step that this one has left.
        """
        self._synchronize()
        if self._decoder.context.group.size > 1:
            raise DeviceError(
                f"a CUDA graph could not be captured ({first_line(error)}), and the GPUs that share the model are now "
                "out of step; start with --no-cuda-graphs"
            ) from error

    def _on_device(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> Torch:
        """Copy integers to the device from pinned memory: a copy from pageable memory waits for the steps in flight."""
        host = torch.tensor(values, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)

    def _record(self, capture: Capture, size: LaunchSize) -> Graph:
        self._stage.load(_NOTHING, size)
        return capture(partial(self._compute, self._stage.inputs(size)))

    def _list(self, size: LaunchSize) -> LaunchList:
        return record(partial(self._compute, self._stage.inputs(size)))

    @contextmanager
    def _watched(self) -> Generator[None]:
        """Errors of the device are told from others (`watched`), and torch keeps no account for gradients."""
        with torch.inference_mode(), watched(self._synchronize):
            yield

    def _synchronize(self) -> None:
        self._failpoints.hit("gpu.sync")
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def independent(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Copies in order, in groups that may run concurrently: no copy writes a block that another of its group uses.

    A block that one copy reads may have been freed since, and may be the target of another copy.
    """
    group: list[tuple[int, int]] = []
    for source, target in pairs:
        if any(target in pair or source == pair[1] for pair in group):
            yield group
            group = []
        group.append((source, target))
    if group:
        yield group


def limits_of(
    device: Device,
    tokens: int,
    rows: int,
    max_model_len: int,
    block_size: int,
    vocab: int,
    groups: int = 1,
    ranks: int = 1,
    adapters: int = 0,
    adapter_rank: int = 0,
) -> StepLimits:
    """Limits of the largest step with these settings."""
    return StepLimits(
        tokens, rows, max_model_len, block_size, device.multiprocessors, vocab, ranks, groups, adapters, adapter_rank
    )


def _adapters(
    config: ModelConfig,
    weights: Weights,
    buffers: StepBuffers[Torch],
    limits: StepLimits,
    dtype: torch.dtype,
    device: torch.device,
) -> DeviceAdapters | None:
    """The slots of a model's adapters, empty; None without any."""
    if not limits.adapters:
        return None
    matrices = adapted_matrices(config, weights)
    return DeviceAdapters(
        matrices, buffers, slots=limits.adapters, max_rank=limits.adapter_rank, dtype=dtype, device=device
    )


def _pool(
    config: ModelConfig, layers: int, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KvPool:
    """The pool of a model, of zeros, whose blocks hold tokens of so many layers."""
    if config.latent is not None:
        return allocate_latents(
            layers=layers,
            num_blocks=num_blocks,
            block_size=block_size,
            cached_dim=config.latent.cached_dim,
            dtype=dtype,
            device=device,
        )
    return allocate_pool(
        layers=layers,
        num_blocks=num_blocks,
        kv_heads=config.kv_heads,
        block_size=block_size,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )


def kv_type(kv_dtype: KvDtype, dtype: torch.dtype) -> torch.dtype:
    """The type of K and V in the pool; "auto" is the activations' type."""
    return dtype if kv_dtype == "auto" else _KV_TYPES[kv_dtype]


def _slopes(config: ModelConfig, group: RankGroup, device: torch.device) -> Torch | None:
    """ALiBi's slopes of a rank's heads, None without ALiBi."""
    if not config.alibi:
        return None
    whole = torch.from_numpy(alibi_slopes(config.heads * group.size)) * config.alibi
    return whole[config.heads * group.rank :][: config.heads].to(device)


def check_latent(latent: LatentAttention, kv_dtype: KvDtype) -> None:
    """Refuse latents that the kernels do not store or sum. Raises `ModelError` or `SettingsError`."""
    if latent.kv_rank > _LARGEST_LATENT:
        raise ModelError(
            f"the model's latents have {latent.kv_rank} elements; the GPU kernels go up to {_LARGEST_LATENT}: compute "
            "on CPUs (--device cpu, resources.gpu.count 0)"
        )
    if kv_dtype != "auto":
        raise SettingsError(
            f"kv_dtype {kv_dtype} with latent attention, whose latents are stored in the type of activations: leave it "
            "at auto",
            "kv_dtype",
        )


def check(config: ModelConfig, device: Device, kv_dtype: KvDtype) -> None:
    """Refuse models and settings that the kernels or the GPU do not support. Raises `ModelError` or `SettingsError`."""
    require_features(config, FEATURES, "the CUDA backend")
    parts = [config.part(layer) for layer in range(config.layers)]
    for heads, kv_heads in {(part.heads or 0, part.kv_heads or 1) for part in parts if part.attention}:
        if heads % kv_heads:
            raise ModelError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
        if heads > config.heads or kv_heads > config.kv_heads:
            raise ModelError(
                f"a layer has {heads} attention heads and {kv_heads} key-value heads; the model has {config.heads} and "
                f"{config.kv_heads} at most"
            )
    if config.qk_norm == "whole" and config.qk_norm_rotated:
        raise UnsupportedModelError(
            f"{config.architecture}: the CUDA backend does not compute norms over all heads after the rotation"
        )
    if config.latent is not None:
        check_latent(config.latent, kv_dtype)
    elif config.head_dim > LARGEST_HEAD:
        raise UnsupportedModelError(
            f"the model's heads have {config.head_dim} elements; the GPU kernels go up to {LARGEST_HEAD}: compute on "
            "CPUs (--device cpu, resources.gpu.count 0)"
        )
    # FP8 weights are unpacked with shifts and run on any GPU. FP8 keys are read with the GPU's own instructions.
    if kv_dtype == "fp8" and device.torch.type == "cuda" and device.capability < FP8_CAPABILITY:
        raise SettingsError(
            f"kv_dtype fp8 needs a card of compute capability {dotted(FP8_CAPABILITY)} (L4, H100 and newer); "
            f"{device.name} has {dotted(device.capability)}: use int8, or leave it at auto",
            "kv_dtype",
        )
