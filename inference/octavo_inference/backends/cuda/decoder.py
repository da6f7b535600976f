"""The decoder op by op: Triton kernels and matrix products over preallocated buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import StepBuffers, StepLimits
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.decode_parts import most_split
from octavo_inference.backends.cuda.kernels.norm import add_rms_norm, rms_norm
from octavo_inference.backends.cuda.kernels.prepare_inputs import prepare
from octavo_inference.backends.cuda.kernels.rope_and_cache import rope_store
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, partial_views
from octavo_inference.backends.cuda.pool import KvPool
from octavo_inference.backends.cuda.rows import DeviceRowTable
from octavo_inference.backends.cuda.weight_loading import DeviceLayer, DeviceWeights
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import PoolLayout


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model, or a rank's shard of it (`models.shard`), on the device with its pool, row table and buffers.

    `ropes[layer]` is the table of cosines and sines [positions, rotary dim] or None; `buffers` are of `buffer_shapes`.
    `layout`: which block table and which part of the pool each layer uses.
    """

    config: ModelConfig
    weights: DeviceWeights
    pool: KvPool
    ropes: tuple[Torch | None, ...]
    buffers: StepBuffers[Torch]
    table: DeviceRowTable
    limits: StepLimits
    layout: PoolLayout
    group: RankGroup = ALONE

    def forward(self, inputs: Inputs) -> Torch:
        """Store K and V of all query tokens; return the `logits` of the sample rows."""
        config, weights, buffers, count = self.config, self.weights, self.buffers, inputs.tokens
        residual, normed, tokens = buffers.residual[:count], buffers.normed[:count], buffers.tokens[:count]
        prepare(
            inputs.row,
            inputs.query_start,
            inputs.seq_len,
            self.table.tokens,
            self.table.blocks,
            self.limits.block_size,
            tokens,
            buffers.positions[:count],
            buffers.slots[:, :count],
        )
        weights.embedding(tokens, residual, scale=config.embedding_scale)
        rms_norm(residual, weights.layers[0].input_norm, config.norm_eps, normed)
        for number, layer in enumerate(weights.layers):
            attended = self._attention(number, layer, normed, inputs)
            self._add(residual, attended, layer.attention_output_norm, layer.post_norm, normed)
            mixed = self._mlp(layer, normed)
            following = weights.layers[number + 1].input_norm if number + 1 < config.layers else weights.final_norm
            self._add(residual, mixed, layer.mlp_output_norm, following, normed)
        torch.index_select(normed, 0, inputs.query, out=buffers.sampled[: len(inputs.query)])
        return self._logits(len(inputs.query))

    def read_out(self, first: int, count: int) -> Torch:
        """The `logits` of `count` query tokens of the last step, from `first` on; at most as many as rows."""
        self.buffers.sampled[:count].copy_(self.buffers.normed[first : first + count])
        return self._logits(count)

    def logits(self, count: int) -> Torch:
        """Logits [count, vocab] in float32 of the last step's first sample rows.

        Valid until the next `forward` or `read_out`.
        """
        return self.buffers.logits[:count]

    def states(self, count: int) -> Torch:
        """Hidden states [count, hidden], after the final norm, of the last step's first query tokens.

        They are valid until the next `forward`, and the same on all ranks.
        """
        return self.buffers.normed[:count]

    def _attention(self, number: int, layer: DeviceLayer, x: Torch, inputs: Inputs) -> Torch:
        config, buffers, tokens = self.config, self.buffers, len(x)
        q, attended = buffers.q[:tokens], buffers.attended[:tokens]
        group, at = self.layout.place(number)
        kv, scales = self.pool.layer(at)
        rope_store(
            layer.qkv(x, buffers.qkv[:tokens]),
            buffers.positions[:tokens],
            buffers.slots[group, :tokens],
            self.ropes[number],
            layer.q_norm,
            layer.k_norm,
            config.norm_eps,
            q,
            kv,
            scales,
        )
        # The decodes of a mixed step run separately: one query token needs few rows per program, and split keys.
        for decodes in (True, False):
            if inputs.kind == ("prompts" if decodes else "decodes"):
                continue
            attend(
                q,
                kv,
                scales,
                self.table.blocks[:, group],
                inputs.row,
                inputs.query_start,
                inputs.seq_len,
                attended,
                bounds=None if decodes else inputs.bounds,
                parts=inputs.parts if decodes else None,
                partial=self._partial(inputs) if decodes else None,
                scale=config.score_scale,
                window=config.window(number),
                softcap=config.attention_softcap,
                tile=self.weights.tiles.for_attention(
                    config.head_dim,
                    config.heads // config.kv_heads,
                    q.dtype,
                    decode=decodes,
                    quantized=scales is not None,
                ),
            )
        return self._sum(layer.o(attended.view(tokens, -1), buffers.projected[:tokens]))

    def _partial(self, inputs: Inputs) -> Partial | None:
        """Buffers for split keys of decodes; prompts have enough programs without it."""
        if len(inputs.parts) == len(inputs.row):
            return None
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        parts = most_split(shares=self.limits.shares(kv_heads))
        return partial_views(self.buffers.partial, parts=parts, heads=heads, head_dim=dim)

    def _mlp(self, layer: DeviceLayer, x: Torch) -> Torch:
        buffers, tokens = self.buffers, len(x)
        activated = buffers.activated[:tokens]
        gated(layer.gate_up(x, buffers.gate_up[:tokens]), activated, self.config.activation)
        return self._sum(layer.down(activated, buffers.projected[:tokens]))

    def _sum(self, x: Torch) -> Torch:
        """Sum the ranks' partial products."""
        self.group.all_reduce(x)
        return x

    def _add(self, residual: Torch, x: Torch, x_norm: Torch | None, norm: Torch, out: Torch) -> None:
        add_rms_norm(residual, x, self.config.residual_scale, norm, self.config.norm_eps, out, x_norm)

    def _logits(self, count: int) -> Torch:
        """Logits of the first rows of `sampled`."""
        config, gathered, sampled = self.config, self.buffers.gathered, self.buffers.sampled[:count]
        logits, head = self.logits(count), self.weights.lm_head
        head(sampled, self.group.share(logits, gathered)[:, : head.rows])
        self.group.gather(logits, gathered)
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if config.logit_softcap is not None:
            logits.div_(config.logit_softcap).tanh_().mul_(config.logit_softcap)
        return logits
