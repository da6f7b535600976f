"""Latent attention over the pool, in the absorbed form for decodes and prompts."""

from __future__ import annotations

from torch import Tensor as Torch

from octavo_inference.backends.cuda.device_weights import DeviceLatent
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.backends.cuda.kernels.decode_parts import most_split
from octavo_inference.backends.cuda.kernels.latent_attention import attend_latents, expand_heads
from octavo_inference.backends.cuda.kernels.latent_store import latent_store
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, normalize
from octavo_inference.backends.cuda.kernels.split_kv_reduce import Partial, partial_views
from octavo_inference.backends.cuda.layers.context import LayerContext
from octavo_inference.backends.cuda.mixer_sizes import mixer_sizes
from octavo_inference.models.layers import LatentAttention


def latent_attention(
    context: LayerContext, latent: LatentAttention, number: int, weights: DeviceLatent, x: Torch, inputs: Inputs
) -> Torch:
    """Store the latents of the query tokens x [T, hidden]; return the layer's output, of this rank alone."""
    buffers, tokens = context.buffers, len(x)
    q_rope, absorbed, latents = buffers.q[:tokens], buffers.absorbed[:tokens], buffers.latents[:tokens]
    group, at = context.layout.place(number)
    pool, _ = context.pool.layer(at)
    projected = context.change(inputs, number, "qkv", x, weights.qkv(x, buffers.qkv[:tokens]))
    queries, down = projected[:, : -latent.cached_dim], projected[:, -latent.cached_dim :]
    if weights.q_up is not None and weights.q_norm is not None:
        normed = buffers.query_latent[:tokens]
        normalize(queries, DeviceNorm(weights.q_norm), latent.norm_eps, normed)
        queries = context.change(inputs, number, "q_up", normed, weights.q_up(normed, buffers.queries[:tokens]))
    latent_store(
        queries,
        down,
        buffers.positions[:tokens],
        buffers.slots[group, :tokens],
        context.ropes[number],
        weights.kv_norm,
        latent.norm_eps,
        q_rope,
        pool,
    )
    by_head = queries.view(tokens, -1, latent.key_dim)
    k_up = weights.k_up.view(-1, latent.nope_dim, latent.kv_rank)
    unrotated = by_head[..., : latent.nope_dim]
    expand_heads(unrotated, k_up, absorbed)
    context.change_heads(inputs, number, "k_up", unrotated, absorbed)
    # The decodes of a mixed step run separately: one query token needs few rows per program, and split keys.
    for decodes in (True, False):
        if inputs.kind == ("prompts" if decodes else "decodes"):
            continue
        attend_latents(
            absorbed,
            q_rope,
            pool,
            context.table.blocks[:, group],
            inputs.row,
            inputs.query_start,
            inputs.seq_len,
            latents,
            bounds=None if decodes else inputs.bounds,
            parts=inputs.parts if decodes else None,
            partial=_partial(context, inputs) if decodes else None,
            scale=context.config.score_scale,
        )
    attended = buffers.attended[:tokens]
    v_up = weights.v_up.view(-1, latent.value_dim, latent.kv_rank)
    expand_heads(latents, v_up.transpose(1, 2), attended)
    context.change_heads(inputs, number, "v_up", latents, attended)
    mixed = attended.view(tokens, -1)
    return context.change(inputs, number, "o", mixed, weights.o(mixed, buffers.projected[:tokens]))


def _partial(context: LayerContext, inputs: Inputs) -> Partial | None:
    """Buffers for split keys of decodes; prompts have enough programs without it."""
    if len(inputs.parts) == len(inputs.row):
        return None
    sizes = mixer_sizes(context.config)
    parts = most_split(shares=context.limits.shares(sizes.readers, sizes.programs))
    return partial_views(context.buffers.partial, parts=parts, heads=context.config.heads, head_dim=sizes.summed)
