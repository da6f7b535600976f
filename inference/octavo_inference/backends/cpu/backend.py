"""The CPU backend: one native call runs a step; Python passes flat arrays by address."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence
from ctypes import byref
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.backends.cpu.footprint import latent_widths, partial_floats, widest_rows
from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.adapter_packing import (
    AdapterPacker,
    PackedAdapter,
    Shapes,
    most_ranks,
    shapes_of,
)
from octavo_inference.backends.cpu.native.cores import usable_cores
from octavo_inference.backends.cpu.native.decoder_packing import pack
from octavo_inference.backends.cpu.native.experts import check_experts, expert_widths, routing
from octavo_inference.backends.cpu.native.library import Kernels, load
from octavo_inference.backends.cpu.native.packed_formats import ELEMENT_BYTES, WIDEST_PANEL, WeightFormat, weight_format
from octavo_inference.backends.cpu.native.packing import Packed, address
from octavo_inference.backends.cpu.native.sampling import NativeSampling, native_sampling, native_scoring
from octavo_inference.backends.cpu.native.state_packing import check_state, state_sizes
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.common.memory_advice import allocate
from octavo_inference.config.engine import Dtype, Quantization
from octavo_inference.core.backend import CompletedStep, ComputedStep, StepHandle
from octavo_inference.core.gather import Batch, ScoreRows, gather
from octavo_inference.core.model_input import DecodeRun, Float32, Int32, RowStep, ScoredTokens, StepResult
from octavo_inference.core.pooling import with_pooled
from octavo_inference.core.sampling import joined
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.features import require_features
from octavo_inference.models.layer_groups import PoolLayout, pool_layout
from octavo_inference.models.weights import Weights

DEFAULT_BLOCK_SIZE = 16

_TILE = 16  # keys that lie together in the KV pool; see layers.h
_QUANTIZED = 32  # activations that share a scale
_STEP = 16  # widest vector of all variants
_LOG = logging.getLogger(__name__)
# What the kernels compute besides the plain decoder (models/features.py).
FEATURES = frozenset(
    {
        *("layers of unlike sizes", "layers without attention or MLP", "attention beside a state layer"),
        *("Mamba-2 layers", "gated delta layers", "short convolutions", "gated attention"),
        *("chunked attention", "attention sinks", "ALiBi", "learned positions", "attention in both directions"),
        *("LayerNorm", "norms after the residual sum", "no norm before attention and MLP", "a norm of the embedding"),
        *("parallel attention and MLP", "an MLP without gate"),
        *(f"the activation {name}" for name in abi.ACTIVATIONS),
        *("norms over all heads", "norms after the rotation", "clipped queries and keys", "a temperature of queries"),
        *(
            "a layer without a norm before attention",
            "a bias of the head",
            "a mixture of experts",
            "a clamped activation of experts",
            "latent attention",
        ),
    }
)


def kv_element_bytes(dtype: str) -> int:
    """Bytes of one element of the KV pool."""
    return ELEMENT_BYTES[_float_format(dtype)]


class CpuBackend:
    """A decoder's packed weights, KV pool, states and scratch memory, and the threads that run it.

    `profile` sums the seconds of each part of the steps. `weight_bytes`, `kv_bytes` and `working_bytes` are the memory
    allocated for packed weights, KV pool with states, and buffers. The embedding's bytes are mostly those of a mapped
    file.
    """

    def __init__(  # noqa: PLR0915 -- a line for each buffer
        self,
        kernels: Kernels,
        config: ModelConfig,
        packed: Packed,
        team: int,
        *,
        num_blocks: int,
        block_size: int,
        max_batched_tokens: int,
        max_running: int,
        max_model_len: int,
        threads: int,
        format_: Literal["f32", "bf16"],
        state_slots: int = 0,
        max_samples: int = 0,
        adapter_slots: int = 0,
        max_adapter_rank: int = 0,
        shapes: Shapes = (),
    ) -> None:
        self.name = f"cpu ({kernels.variant}, {threads} thread{'s' if threads > 1 else ''})"
        self.block_size, self.num_blocks, self.vocab_size = block_size, num_blocks, config.vocab
        self.layout = pool_layout(config)
        self.hidden_size, self.steps_ahead = config.hidden, 0
        self.state_slots = state_slots
        self.decode_runs = True
        self.max_prompt_scores: int | None = None
        self.profile = abi.PartSeconds()
        self._kernels, self._packed, self._team = kernels, packed, team
        weakref.finalize(self, kernels.library.octavo_team_destroy, team)

        act = np.dtype(np.float32 if format_ == "f32" or kernels.info.activation_bytes == 4 else np.uint16)
        samples = max(max_running, max_samples)
        tokens, layers = max_batched_tokens, (abi.LayerArgs * config.layers)(*packed.layers)
        ropes = {rope: rope.table(max_model_len) for rope in map(config.rope, range(config.layers)) if rope is not None}
        for number, layer in enumerate(layers):
            rope = config.rope(number)
            layer.rope = None if rope is None else address(ropes[rope])
            layer.window, layer.chunk = config.window(number) or 0, config.chunk(number) or 0
        element_bytes = ELEMENT_BYTES[format_]
        block_bytes = self.layout.token_bytes(config, element_bytes) * block_size // len(self.layout.groups)
        memory = allocate(block_bytes * num_blocks)
        self._pools = _pools(memory, config, self.layout, num_blocks, block_size * element_bytes)
        for number, layer in enumerate(layers):
            if layer.qkv.rows:
                layer.group, at = self.layout.place(number)
                layer.kv = address(self._pools[at])
        states = state_sizes(config.state)
        # What `StateLayer` of abi.h has in a slot: [layers, slots, elements].
        self._states = _zeros((config.state_layers * state_slots, states.elements), np.dtype(np.float32)).reshape(
            config.state_layers, state_slots, states.elements
        )
        with_state = [layer for layer in layers if layer.state.inputs.rows]
        for layer, slots in zip(with_state, self._states, strict=True):
            layer.state.slots = address(slots)
        latent, widths = config.latent, latent_widths(config)
        scratch = max(
            kernels.library.octavo_attention_scratch(config.head_dim)
            if latent is None
            else kernels.library.octavo_latent_scratch(latent.kv_rank),
            packed.lm_head.rows,
            config.hidden,
        )
        _, attended, inner = widest_rows(config)
        normed = max(config.hidden, widths.query_latent)
        widest = max(normed, attended, inner, states.inner)
        hidden_stride = -(-config.hidden // kernels.info.panel) * kernels.info.panel
        # AMX reads activations as they are: its blocks have no bytes.
        rounds = packed.quantized and kernels.info.quantized_block_bytes > 0
        rounded = (max(tokens, samples) if rounds else 0, -(-widest // _QUANTIZED))
        int8_block = np.dtype((np.void, max(1, kernels.info.quantized_block_bytes)))
        mixture = expert_widths(config.experts, config.hidden, kernels.info.panel)
        buffers: dict[str, NDArray[Any]] = {
            "hidden_state": _zeros((tokens, hidden_stride), np.dtype(np.float32)),
            "qkv": _zeros((tokens, max(layer.qkv.rows for layer in layers)), np.dtype(np.float32)),
            "projected": _zeros((tokens if config.output_norms else 0, hidden_stride), np.dtype(np.float32)),
            "logits": _zeros((samples, packed.lm_head.rows), np.dtype(np.float32)),
            # The final norm writes one row per sample row; a step may have more sample rows than query tokens.
            "normed": _zeros((max(tokens, samples), normed), act),
            "attended": _zeros((tokens, attended), act),
            "activated": _zeros((tokens, inner), act),
            "state_inputs": _zeros((tokens, max(layer.state.inputs.rows for layer in layers)), np.dtype(np.float32)),
            "mixed": _zeros((tokens, states.inner), act),
            "quantized": _zeros(rounded, int8_block),
            "scratch": _zeros((threads, scratch), np.dtype(np.float32)),
            "partials": _zeros((max_running + threads, partial_floats(config)), np.dtype(np.float32)),
            # The router reads float32, whatever the activation type is.
            "router_input": _zeros(
                (tokens if config.experts and act.itemsize < 4 else 0, config.hidden), np.dtype(np.float32)
            ),
            "router_logits": _zeros((tokens, mixture.router_logits), np.dtype(np.float32)),
            "expert_inputs": _zeros((tokens, mixture.inputs), np.dtype(np.float32)),
            "expert_activated": _zeros((tokens, mixture.activated), act),
            "expert_quantized": _zeros((tokens if rounds else 0, mixture.quantized), int8_block),
        }
        latent_buffers: dict[str, NDArray[Any]] = {
            "by_head": _zeros((tokens, widths.by_head), act),
            "absorbed": _zeros((tokens, widths.absorbed), act),
            "queries": _zeros((tokens, layers[0].query_up.rows), np.dtype(np.float32)),
        }
        self.adapter_slots = adapter_slots
        ranks = most_ranks(max_adapter_rank, kernels.info.panel, shapes)
        experts_of_token = 1 if config.experts is None else config.experts.chosen + 1
        changed_rows = max(tokens * experts_of_token, samples) if adapter_slots else 0
        buffers["low_rank"] = _zeros((changed_rows, ranks), np.dtype(np.float32))
        self._adapters = (abi.AdapterArgs * adapter_slots)()
        self._loaded: dict[int, PackedAdapter] = {}
        format_of_adapters: WeightFormat = "f32" if format_ == "f32" else "bf16"
        self._packer = AdapterPacker(kernels, config, shapes, layers, packed.lm_head, format_of_adapters, ranks)
        for slot in range(adapter_slots):
            self.load_adapter(slot, None)
        self._buffers = buffers | latent_buffers
        self._logits: Float32 = buffers["logits"]
        self._layers, self._ropes = layers, ropes
        temperature = config.query_temperature or (1.0, 0.0)
        self._model = abi.DecoderArgs(
            layers=layers,
            embedding_norm=packed.embedding_norm,
            final_norm=packed.final_norm,
            token_type=packed.token_type,
            second_token_type=packed.second_token_type,
            embedding=packed.embedding,
            positions=packed.positions,
            lm_head=packed.lm_head,
            **{name: address(buffer) for name, buffer in buffers.items()},
            scratch_floats=scratch,
            partial_floats=buffers["partials"].size,
            format=abi.FORMATS[format_],
            num_layers=config.layers,
            hidden=config.hidden,
            head_dim=config.head_dim,
            rotary_dim=config.rotary_dim or config.head_dim,
            vocab=config.vocab,
            block_size=block_size,
            activation=abi.ACTIVATIONS[config.activation],
            layer_norm=config.layer_norm,
            qk_norm_whole=config.qk_norm == "whole",
            qk_norm_rotated=config.qk_norm_rotated,
            post_residual_norms=config.post_residual_norms,
            parallel=config.parallel,
            gated=config.gated,
            bidirectional=config.bidirectional,
            norm_eps=config.norm_eps,
            score_scale=config.score_scale,
            attention_softcap=config.attention_softcap or 0.0,
            logit_softcap=config.logit_softcap or 0.0,
            embedding_scale=config.embedding_scale,
            residual_scale=config.residual_scale,
            logit_scale=config.logit_scale,
            qkv_clip=config.qkv_clip or 0.0,
            temperature_floor=temperature[0],
            temperature_factor=temperature[1],
            state=states,
            attention_gate=config.attention_gate,
            routing=routing(config.experts),
            latent=_latent_args(config, latent_buffers),
            adapters=ctypes.addressof(self._adapters) if adapter_slots else None,
            low_rank_stride=ranks,
        )
        self.weight_bytes, self.embedding_bytes = packed.size, packed.embedding_bytes
        self.kv_bytes = memory.nbytes + self._states.nbytes
        # Threads allocate the memory of panels themselves, when they first unpack one.
        self.working_bytes = sum(b.nbytes for b in self._buffers.values()) + threads * packed.panel_bytes
        _LOG.info(
            "%s: weights %.0f MB, KV pool %.0f MB (%d blocks of %d tokens, %d states), working memory %.0f MB",
            self.name,
            self.weight_bytes / 1e6,
            self.kv_bytes / 1e6,
            num_blocks,
            block_size,
            state_slots,
            self.working_bytes / 1e6,
        )

    @classmethod
    def create(
        cls,
        config: ModelConfig,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int = DEFAULT_BLOCK_SIZE,
        max_batched_tokens: int,
        max_running: int,
        max_model_len: int,
        dtype: Dtype = "auto",
        quantization: Quantization = "auto",
        threads: int | None = None,
        kernels: Kernels | None = None,
        state_slots: int = 0,
        max_samples: int = 0,
        adapter_slots: int = 0,
        max_adapter_rank: int = 0,
    ) -> CpuBackend:
        """Pack the weights and allocate the pool; KV pages become resident at first use.

        A step samples at most `max_samples` tokens, or one of each of `max_running` sequences if that is more.
        `threads` defaults to the cores that this process may use, `kernels` to the best variant that the machine
        supports.

        Raises NativeUnavailableError (kernels not built), ModelError (sizes without kernel support), SettingsError.
        """
        _check(config, block_size, max_model_len)
        kernels, format_ = kernels or load(), _float_format(dtype)
        wanted = weight_format(dtype, quantization)
        count = threads or usable_cores()
        team = kernels.library.octavo_team_create(count)
        packed = pack(kernels, team, config, weights, wanted)
        return cls(
            kernels,
            config,
            packed,
            team,
            num_blocks=num_blocks,
            block_size=block_size,
            max_batched_tokens=max_batched_tokens,
            max_running=max_running,
            max_model_len=max_model_len,
            threads=count,
            format_=format_,
            state_slots=state_slots,
            max_samples=max_samples,
            adapter_slots=adapter_slots,
            max_adapter_rank=max_adapter_rank,
            shapes=shapes_of(weights),
        )

    def prepare_adapter(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter, in any thread. Raises `ModelError` for changes that the kernels cannot make."""
        return self._packer.pack(adapter)

    def load_adapter(self, slot: int, adapter: PackedAdapter | None) -> None:
        """Put an adapter into a slot, or one that changes nothing."""
        loaded = self._no_adapter if adapter is None else adapter
        # No step runs meanwhile: one that waits for its masks reads the slots again.
        self._adapters[slot] = loaded.args
        self._loaded[slot] = loaded

    @cached_property
    def _no_adapter(self) -> PackedAdapter:
        """What is in an empty slot: rows whose result is dropped may still have it."""
        return self._packer.empty()

    def launch(self, step: RowStep) -> StepHandle:
        """Gather a step and run it."""
        batch = gather(step)
        if step.run is not None:
            return CompletedStep(self._decode(batch, step.run))
        if not step.guided:
            return CompletedStep(self.step(batch))
        sampling = native_sampling(batch.sample, self.vocab_size, adapter=batch.adapter)
        # The head waits for the masks, because a greedy row then stores no logits. A thread fills them meanwhile.
        self._run(batch, abi.SamplingArgs(count=0), choose=False)
        return ComputedStep(partial(self._choose, batch, sampling))

    def part_seconds(self) -> dict[str, float]:
        """The sums in `profile`, by part."""
        return {name: getattr(self.profile, name) for name, _ in self.profile._fields_}

    def expert_tokens(self) -> NDArray[np.int64] | None:
        """Tokens that each expert computed so far, [layers, experts]; None for a model without experts."""
        counted = self._packed.expert_tokens
        return None if counted is None else counted.copy()

    def idle(self) -> bool:
        """Nothing to prepare."""
        return False

    def step(self, batch: Batch) -> StepResult:
        """Run the model over the batch, store K and V, sample; the result is valid until the next call."""
        sampling = native_sampling(batch.sample, self.vocab_size, adapter=batch.adapter)
        self._run(batch, sampling.structure, choose=True)
        return self._result(batch, sampling)

    def _decode(self, batch: Batch, run: DecodeRun) -> StepResult:
        """Run several decode steps."""
        sampling = native_sampling(batch.sample, self.vocab_size, run.steps, adapter=batch.adapter)
        native = abi.DecodeRunArgs(
            seconds=run.seconds,
            end_ids=address(run.end_ids),
            end_start=address(run.end_start),
            steps=run.steps,
            message_fd=run.message_fd,
        )
        done = self._kernels.library.octavo_decode(
            self._team,
            byref(self._model),
            byref(_batch_args(batch)),
            byref(sampling.structure),
            byref(native),
            byref(self.profile),
        )
        result = sampling.result()
        return replace(result, tokens=result.tokens[:done])

    def _choose(self, batch: Batch, sampling: NativeSampling) -> StepResult:
        """Sample after query tokens of the last step."""
        self._kernels.library.octavo_choose(
            self._team, byref(self._model), byref(sampling.structure), byref(self.profile)
        )
        return self._result(batch, sampling)

    def _result(self, batch: Batch, sampling: NativeSampling) -> StepResult:
        result = with_pooled(sampling.result(), batch)
        scores = [self._score(rows, batch.adapter) for rows in batch.scores]
        return replace(result, scores=scores) if scores else result

    def logits(self, batch: Batch) -> Float32:
        """Run the step without sampling: logits [R, vocab] of the sample rows."""
        count = len(batch.sample.row)
        sampling = native_sampling(batch.sample, self.vocab_size, adapter=batch.adapter)
        self._run(batch, sampling.structure, choose=False)
        return self._logits[:count, : self.vocab_size].copy()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks (source, destination), all their layers."""
        for origin, target in pairs:
            for pool in self._pools:
                pool[target] = pool[origin]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all their layers."""
        for pool in self._pools:
            pool[list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks: [block, bytes]."""
        parts = [np.empty((len(blocks), 0), np.uint8), *(pool[list(blocks)] for pool in self._pools)]
        return np.concatenate(parts, axis=1)

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        start = 0
        for pool in self._pools:
            end = start + pool.shape[1]
            pool[list(blocks)] = saved[:, start:end]
            start = end

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of whole slots (source, destination), all layers."""
        for origin, target in pairs:
            self._states[:, target] = self._states[:, origin]

    def states_to_host(self, slots: Sequence[int]) -> NDArray[np.generic]:
        """Copy the states of whole slots, all layers: [slot, layer, elements]."""
        return np.ascontiguousarray(self._states[:, list(slots)].swapaxes(0, 1))

    def states_from_host(self, saved: NDArray[np.generic], slots: Sequence[int]) -> None:
        """Copy rows returned by `states_to_host` into as many slots."""
        self._states[:, list(slots)] = saved.swapaxes(0, 1)

    def _score(self, rows: ScoreRows, adapter: Int32) -> ScoredTokens:
        """Score tokens after query tokens of the last step, in pieces of as many rows as there are logits."""
        parts, most = [], len(self._logits)
        for at in range(0, len(rows.row), most):
            piece = ScoreRows(rows.row[at : at + most], rows.tokens[at : at + most], rows.logprobs)
            scoring = native_scoring(piece, self.vocab_size, adapter)
            self._kernels.library.octavo_score(
                self._team, byref(self._model), byref(scoring.structure), byref(self.profile)
            )
            parts.append(scoring.scored)
        return joined(parts)

    def _run(self, batch: Batch, sampling: abi.SamplingArgs, *, choose: bool) -> None:
        self._kernels.library.octavo_step(
            self._team,
            byref(self._model),
            byref(_batch_args(batch)),
            byref(sampling),
            byref(_pooling(batch)),
            int(choose),
            byref(self.profile),
        )


def _latent_args(config: ModelConfig, buffers: dict[str, NDArray[Any]]) -> abi.Latent:
    latent = config.latent
    if latent is None:
        return abi.Latent()
    return abi.Latent(
        **{name: address(buffer) for name, buffer in buffers.items()},
        heads=config.heads,
        rank=latent.kv_rank,
        nope=latent.nope_dim,
        rope=latent.rope_dim,
        value=latent.value_dim,
        query_rank=latent.query_rank or 0,
        norm_eps=latent.norm_eps,
    )


def _batch_args(batch: Batch) -> abi.BatchArgs:
    return abi.BatchArgs(
        tokens=address(batch.tokens),
        positions=address(batch.positions),
        slots=address(batch.slots),
        query_start=address(batch.query_start),
        seq_len=address(batch.seq_len),
        block_table=address(batch.block_table),
        states=address(batch.states),
        token_types=address(batch.token_types) if len(batch.token_types) else None,
        adapter=address(batch.adapter) if len(batch.adapter) else None,
        num_tokens=len(batch.tokens),
        num_seqs=len(batch.seq_len),
        table_width=batch.block_table.shape[2],
        num_groups=len(batch.block_table),
    )


def _pooling(batch: Batch) -> abi.PoolingArgs:
    pooling, sums = batch.pooling, batch.sums
    if pooling is None or sums is None:
        return abi.PoolingArgs(count=0)
    return abi.PoolingArgs(
        row=address(pooling.row),
        first=address(pooling.first),
        end=address(pooling.end),
        fresh=address(pooling.fresh),
        sums=address(sums),
        count=len(pooling.row),
    )


def _float_format(dtype: str) -> Literal["f32", "bf16"]:
    if dtype not in {"auto", "bfloat16", "float32"}:
        raise SettingsError(f"dtype is {dtype!r}; the CPU backend supports auto, bfloat16 and float32", "dtype")
    return "f32" if dtype == "float32" else "bf16"


def _pools(
    memory: NDArray[np.uint8], config: ModelConfig, layout: PoolLayout, num_blocks: int, row_bytes: int
) -> list[NDArray[np.uint8]]:
    """The part of the pool of each layer of a block, [blocks, bytes]. `row_bytes`: an element of all its tokens."""
    largest = max(layout.groups, key=lambda group: len(group.layers))
    parts = [config.part(layer) for layer in largest.layers[: layout.depth]]
    if config.latent is not None:
        elements = [config.latent.cached_dim for _ in parts]
    else:
        elements = [2 * int(part.kv_heads or 0) * config.head_dim for part in parts]
    sizes = [each * row_bytes for each in elements]
    ends = np.cumsum(sizes) * num_blocks
    return [
        memory[end - size * num_blocks : end].reshape(num_blocks, size) for end, size in zip(ends, sizes, strict=True)
    ]


def _check(config: ModelConfig, block_size: int, max_model_len: int) -> None:
    if block_size <= 0 or block_size % _TILE:
        raise SettingsError(f"block size is {block_size}; on CPU it must be a multiple of {_TILE}", "block_size")
    require_features(config, FEATURES, "the CPU backend")
    if config.learned_positions and max_model_len > config.learned_positions:
        raise SettingsError(
            f"max_model_len is {max_model_len}; the model has embeddings of {config.learned_positions} positions",
            "max_model_len",
        )
    parts = [config.part(layer) for layer in range(config.layers)]
    sizes = {"hidden": {config.hidden}, "head_dim": {config.head_dim}}
    sizes["intermediate"] = {int(part.intermediate or 0) for part in parts if part.feed_forward == "dense"}
    steps, latent = dict.fromkeys(sizes, _STEP), config.latent
    if latent is not None:
        # A head's rows of an expansion are whole panels.
        steps |= {"kv_rank": WIDEST_PANEL, "value_dim": WIDEST_PANEL, "nope_dim": _STEP, "rope_dim": _STEP}
        steps |= {"query_rank": _STEP}
        sizes |= {name: {getattr(latent, name) or 0} for name in steps.keys() - sizes.keys()}
    for name, step in steps.items():
        for value in sorted(sizes[name]):
            if value % step:
                raise ModelError(f"the model's {name} size is {value}; the CPU kernels need a multiple of {step}")
    for part in parts:
        heads, kv_heads = int(part.heads or 0), int(part.kv_heads or 0)
        if part.attention and heads % kv_heads:
            raise ModelError(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    check_state(config.state)
    if config.experts is not None:
        check_experts(config.experts, _STEP)


def _zeros(shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    return allocate(shape[0] * shape[1] * dtype.itemsize).view(dtype).reshape(shape)
