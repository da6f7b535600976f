"""A rank's part of a model: views of the whole, nothing is copied. Pure.

    q, k, v, gate, up   rows: each rank computes some heads, and some of the MLP's inner elements; the gate of outputs
                        like q
    norms of each head  rows, like q and k
    o, down             columns: each rank has one term of a sum that `Group.all_reduce` completes
    experts             each like the MLP; the router is whole, so that all ranks choose the same experts
    lm_head, its bias   rows: `Group.gather` puts the logits together
    embedding, norms    whole

Of latent attention, whose latents all heads share, each rank has some heads: rows of q, k_up and v_up, columns of o.
The projections to latents, and the pool of latents, are whole on every rank.

With fewer key-value heads than ranks, each head is replicated on several ranks. The partition is that of Shoeybi et al.
2019 (Megatron-LM), section 3: two all-reduces per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.weights import (
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    Matrix,
    Tensor,
    Weights,
    column_step,
    required,
)

# Tensor parallel sizes that an error message can suggest.
_OFFERED = range(1, 9)
# A rank's share of the logits begins at a multiple of 16 tokens: kernels then find each row of it aligned.
_VOCAB_STEP = 16
_FIELD = "tensor_parallel_size"
M = TypeVar("M", Tensor, Matrix)


def shard(config: ModelConfig, weights: Weights, *, rank: int, size: int) -> tuple[ModelConfig, Weights]:
    """Configuration of `rank` of `size`. `vocab` is that of the whole model: every rank gets all logits.

    Raises `SettingsError` for a size into which the model cannot be divided.
    """
    if size == 1:
        return config, weights
    require_shards(config, weights, size)
    replicas = max(1, size // config.kv_heads)
    part = replace(
        config,
        heads=config.heads // size,
        kv_heads=max(1, config.kv_heads // size),
        intermediate=config.intermediate // size,
        experts=None if config.experts is None else _divided(config.experts, size),
    )
    step = vocab_share(config.vocab, size)
    head, own = weights.lm_head, (rank * step, min((rank + 1) * step, config.vocab))
    return part, replace(
        weights,
        layers=tuple(_layer(layer, rank, size, replicas, config.head_dim) for layer in weights.layers),
        lm_head=head.rows(*own),
        head_bias=None if weights.head_bias is None else weights.head_bias.rows(*own),
    )


def vocab_share(vocab: int, size: int) -> int:
    """Logits that each of `size` ranks computes for a token; the last rank computes what is left."""
    return -(-vocab // (size * _VOCAB_STEP)) * _VOCAB_STEP


def require_shards(config: ModelConfig, weights: Weights, size: int) -> None:
    """Raises `SettingsError` naming the dimension that is not divisible by `size`, and the possible sizes."""
    reason = _refusal(config, weights, size)
    if reason is not None:
        offered = ", ".join(str(n) for n in _OFFERED if _refusal(config, weights, n) is None)
        raise SettingsError(f"{_FIELD} {size}: {reason}; use {offered}", _FIELD)


def _refusal(config: ModelConfig, weights: Weights, size: int) -> str | None:
    if size == 1:
        return None
    if config.state is not None:
        return "the model has state layers, which are not divided between GPUs"
    if any(part != LayerParts(feed_forward=part.feed_forward) or part.feed_forward == "none" for part in config.parts):
        return "the model has layers of unlike sizes or without attention or MLP, which are not divided between GPUs"
    if config.qk_norm == "whole":
        return "the model normalizes queries over all heads together, which are not divided between GPUs"
    for count, what in _counts(config):
        if count % size:
            return f"the model has {count} {what}, which {size} does not divide"
    if config.kv_heads % size and size % config.kv_heads:
        return f"the model has {config.kv_heads} key-value heads, which {size} neither divides nor is a multiple of"
    if vocab_share(config.vocab, size) * (size - 1) >= config.vocab:
        return f"a vocabulary of {config.vocab} tokens leaves the last of {size} ranks without one"
    return next(filter(None, (_block_refusal(m, size) for m in _summed(weights.layers))), None)


def _counts(config: ModelConfig) -> Iterator[tuple[int, str]]:
    """Numbers that ranks divide between them, and their names."""
    yield config.heads, "attention heads"
    if any(config.part(layer).feed_forward == "dense" for layer in range(config.layers)):
        yield config.intermediate, "inner elements of its MLP"
    if config.experts is not None:
        yield config.experts.intermediate, "inner elements of each expert"
        yield config.experts.shared, "inner elements of its shared experts"


def _summed(layers: Iterable[LayerWeights]) -> Iterator[Matrix]:
    """Matrices whose columns are divided."""
    for layer in layers:
        yield required(layer.o)
        if layer.experts is None:
            yield required(layer.down)
        else:
            yield from layer.experts.down
            if layer.experts.shared_down is not None:
                yield layer.experts.shared_down


def _block_refusal(matrix: Matrix, size: int) -> str | None:
    """Check that ranks have whole blocks of a quantised weight, or parts of groups that kernels read."""
    if isinstance(matrix, GroupedMatrix) and matrix.order is not None:
        return f"the columns of its {matrix.format} weights are sorted by group (act-order), which mixes those of ranks"
    block, columns = column_step(matrix), matrix.shape[1]
    if columns // size % block == 0:
        return None
    return f"{columns} columns in {matrix.format} blocks of {block} cannot be cut into {size} runs of whole blocks"


def _layer(layer: LayerWeights, rank: int, size: int, replicas: int, head_dim: int) -> LayerWeights:
    def rows(matrix: M) -> M:
        return _part(matrix, rank, size)

    def shared(matrix: M) -> M:
        return _part(matrix, rank // replicas, size // replicas)

    def bias(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else rows(tensor)

    def shared_bias(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else shared(tensor)

    def norm(tensor: Tensor | None, cut: Callable[[Tensor], Tensor]) -> Tensor | None:
        """A norm over heads: of one weight for all, or with weights of each."""
        return tensor if tensor is None or tensor.shape[0] == head_dim else cut(tensor)

    if layer.latent is not None:
        mixer = replace(layer, latent=_latent(layer.latent, rank, size))
    else:
        mixer = replace(layer, q=rows(required(layer.q)), k=shared(required(layer.k)), v=shared(required(layer.v)))
    return replace(
        mixer,
        o=_columns(required(layer.o), rank, size),
        gate=None if layer.gate is None else rows(layer.gate),
        up=None if layer.up is None else rows(layer.up),
        attention_gate=None if layer.attention_gate is None else rows(layer.attention_gate),
        down=None if layer.down is None else _columns(layer.down, rank, size),
        experts=None if layer.experts is None else _experts(layer.experts, rank, size),
        q_bias=bias(layer.q_bias),
        k_bias=shared_bias(layer.k_bias),
        v_bias=shared_bias(layer.v_bias),
        q_norm=norm(layer.q_norm, rows),
        k_norm=norm(layer.k_norm, shared),
        q_norm_bias=norm(layer.q_norm_bias, rows),
        k_norm_bias=norm(layer.k_norm_bias, shared),
        sinks=bias(layer.sinks),
        gate_bias=bias(layer.gate_bias),
        up_bias=bias(layer.up_bias),
        # Added once to a sum, not once by each rank.
        o_bias=layer.o_bias if rank == 0 else None,
        down_bias=layer.down_bias if rank == 0 else None,
    )


def _divided(experts: Experts, size: int) -> Experts:
    return replace(experts, intermediate=experts.intermediate // size, shared=experts.shared // size)


def _experts(experts: ExpertWeights, rank: int, size: int) -> ExpertWeights:
    def rows(matrix: Matrix | None) -> Matrix | None:
        return None if matrix is None else _part(matrix, rank, size)

    def bias(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else _columns(tensor, rank, size)

    shared_down = experts.shared_down
    return replace(
        experts,
        gate=tuple(_part(matrix, rank, size) for matrix in experts.gate),
        up=tuple(_part(matrix, rank, size) for matrix in experts.up),
        down=tuple(_columns(matrix, rank, size) for matrix in experts.down),
        gate_bias=bias(experts.gate_bias),
        up_bias=bias(experts.up_bias),
        down_bias=experts.down_bias if rank == 0 else None,
        shared_gate=rows(experts.shared_gate),
        shared_up=rows(experts.shared_up),
        shared_down=None if shared_down is None else _columns(shared_down, rank, size),
    )


def _latent(latent: LatentWeights, rank: int, size: int) -> LatentWeights:
    def heads(matrix: Matrix | None) -> Matrix | None:
        return None if matrix is None else _part(matrix, rank, size)

    k_up, v_up = _part(latent.k_up, rank, size), _part(latent.v_up, rank, size)
    return replace(latent, q=heads(latent.q), q_up=heads(latent.q_up), k_up=k_up, v_up=v_up)


def _part(matrix: M, rank: int, size: int) -> M:
    count = matrix.shape[0] // size
    return matrix.rows(rank * count, (rank + 1) * count)


def _columns(matrix: M, rank: int, size: int) -> M:
    count = matrix.shape[1] // size
    return matrix.columns(rank * count, (rank + 1) * count)
