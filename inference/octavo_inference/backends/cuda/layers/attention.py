"""Softmax attention over the pool, with grouped queries."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceAttention
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.attention import attend
from octavo_inference.backends.cuda.kernels.decode_parts import most_split
from octavo_inference.backends.cuda.kernels.gated_norm import sigmoid_gate
from octavo_inference.backends.cuda.kernels.head_norm import normalize_whole
from octavo_inference.backends.cuda.kernels.rope_and_cache import HeadRules, rope_store
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, partial_views
from octavo_inference.backends.cuda.layers.context import LayerContext, rows_of


def attention(context: LayerContext, number: int, weights: DeviceAttention, x: Torch, inputs: Inputs) -> Torch:
    """Store K and V of the query tokens x [T, hidden]; return the layer's output, of this rank alone."""
    config, buffers, tokens, rope = context.config, context.buffers, len(x), context.ropes[number]
    heads, kv_heads = context.heads(number)
    q, attended = (
        rows_of(each, tokens, heads * config.head_dim).view(tokens, heads, config.head_dim)
        for each in (buffers.q, buffers.attended)
    )
    group, at = context.layout.place(number)
    kv, scales = context.pool.layer(at)
    qkv = weights.qkv(x, rows_of(buffers.qkv, tokens, weights.qkv.rows))
    context.change(inputs, number, "qkv", x, qkv)
    q_norm, k_norm = weights.q_norm, weights.k_norm
    if config.qk_norm == "whole" and q_norm is not None and k_norm is not None:
        widths = {"q_width": heads * config.head_dim, "k_width": kv_heads * config.head_dim}
        normalize_whole(qkv, q_norm, k_norm, config.norm_eps, **widths)
    if config.qk_norm == "whole" or (config.qk_norm_rotated and rope is None):
        q_norm, k_norm = None, None
    rope_store(
        qkv,
        buffers.positions[:tokens],
        buffers.slots[group, :tokens],
        rope,
        q_norm,
        k_norm,
        config.norm_eps,
        q,
        kv,
        scales,
        HeadRules(config.qk_norm_rotated, config.qkv_clip, config.query_temperature if rope is None else None),
        kv_heads,
    )
    # The decodes of a mixed step run separately: one query token needs few rows per program, and split keys.
    for decodes in (True, False):
        if inputs.kind == ("prompts" if decodes else "decodes"):
            continue
        attend(
            q,
            kv,
            scales,
            context.table.blocks[:, group],
            inputs.row,
            inputs.query_start,
            inputs.seq_len,
            attended,
            bounds=None if decodes else inputs.bounds,
            parts=inputs.parts if decodes else None,
            partial=_partial(context, heads, inputs) if decodes else None,
            scale=config.score_scale,
            window=config.window(number),
            chunk=config.chunk(number),
            softcap=config.attention_softcap,
            sinks=weights.sinks,
            slopes=context.slopes,
            tile=context.tiles.for_attention(
                config.head_dim,
                heads // kv_heads,
                q.dtype,
                decode=decodes,
                quantized=scales is not None,
            ),
            kv_heads=kv_heads,
        )
    mixed = attended.view(tokens, -1)
    if config.attention_gate:
        sigmoid_gate(mixed, qkv[:, -mixed.shape[1] :])
    return context.change(inputs, number, "o", mixed, weights.o(mixed, buffers.projected[:tokens]))


def _partial(context: LayerContext, heads: int, inputs: Inputs) -> Partial | None:
    """Buffers for split keys of decodes; prompts have enough programs without it."""
    if len(inputs.parts) == len(inputs.row):
        return None
    config = context.config
    parts = most_split(shares=context.limits.shares(config.kv_heads))
    return partial_views(context.buffers.partial, parts=parts, heads=heads, head_dim=config.head_dim)
