"""The reference backend: a decoder in plain float32 torch, op by op, bitwise independent of the batch.

A matrix product's bits depend on its shape and on the row's place in it: libraries block large and small products
differently. So every row-wise op here runs on tiles of one fixed shape, and the token at position p is always row p %
TILE of its tile (the other rows belong to other sequences or are zero). Attention runs token by token, with shapes that
depend on the position alone. A token's result then has the same bits in every schedule: prompt computed at once, in
chunks, after a prefix hit or after a preemption, with any other sequences in the batch. Slow by design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch
from torch.nn.functional import gelu, linear, silu

from octavo_inference.core.backend import CompletedStep, ComputedStep, StepHandle
from octavo_inference.core.gather import Batch, ScoreRows, gather
from octavo_inference.core.model_input import Float32, Int32, RowStep, ScoredTokens, StepResult
from octavo_inference.core.pooling import add_states, pooled_tokens, with_pooled
from octavo_inference.core.sampling import joined, sample, score
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, dequantize, required

TILE = 8
DEFAULT_BLOCK_SIZE = 16
KV_ELEMENT_BYTES = 4
_SCORED_ROWS = 8 * TILE  # rows of logits that exist at a time while a prompt is scored


class _Layer:
    """One layer's weights in float32; q, k and v stacked, gate and up stacked. None: the model has none."""

    def __init__(self, weights: LayerWeights) -> None:
        self.input_norm = _torch(required(weights.input_norm))
        self.qkv = _stack(required(weights.q), required(weights.k), required(weights.v))
        self.qkv_bias = _given(weights.q_bias, weights.k_bias, weights.v_bias)
        self.q_norm, self.k_norm = _given(weights.q_norm), _given(weights.k_norm)
        self.o, self.o_bias = _torch(required(weights.o)), _given(weights.o_bias)
        self.attention_output_norm = _given(weights.attention_output_norm)
        self.post_norm = _torch(required(weights.post_norm))
        self.gate_up = _stack(required(weights.gate), required(weights.up))
        self.gate_up_bias = _given(weights.gate_bias, weights.up_bias)
        self.down, self.down_bias = _torch(required(weights.down)), _given(weights.down_bias)
        self.mlp_output_norm = _given(weights.mlp_output_norm)


class ReferenceBackend:
    """`Backend` in float32 torch. KV pool: [layers, blocks * block_size, kv_heads, head_dim] for K and V."""

    def __init__(
        self, config: ModelConfig, weights: Weights, *, num_blocks: int, block_size: int, max_model_len: int
    ) -> None:
        self.name = "reference"
        self.steps_ahead = 0
        self.decode_runs = False
        self.max_prompt_scores: int | None = None
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.vocab_size = config.vocab
        self.hidden_size = config.hidden
        self._config = config
        self._layers = [_Layer(layer) for layer in weights.layers]
        self._embedding = _torch(weights.embedding)
        self._final_norm = _torch(required(weights.final_norm))
        self._head = self._embedding if weights.lm_head is weights.embedding else _torch(weights.lm_head)
        ropes = [config.rope(layer) for layer in range(config.layers)]
        tables = {rope: torch.from_numpy(rope.table(max_model_len)) for rope in ropes if rope is not None}
        self._ropes = [None if rope is None else tables[rope] for rope in ropes]
        pool = (config.layers, num_blocks * block_size, config.kv_heads, config.head_dim)
        self._keys = torch.zeros(pool)
        self._values = torch.zeros(pool)

    def launch(self, step: RowStep) -> StepHandle:
        """Gather a step and run it."""
        batch = gather(step)
        result = self._compute(batch)
        return ComputedStep(result) if step.guided else CompletedStep(result())

    def part_seconds(self) -> dict[str, float]:
        """Not measured."""
        return {}

    def idle(self) -> bool:
        """Nothing to prepare."""
        return False

    def step(self, batch: Batch) -> StepResult:
        """Run the model and sample."""
        return self._compute(batch)()

    def _compute(self, batch: Batch) -> Callable[[], StepResult]:
        """Run the model. The function returned samples."""
        x, places = self._forward(batch)
        add_states(batch, self._final(x, places, batch, pooled_tokens(batch.pooling), lambda t: t).numpy())
        logits = self._read_out(x, places, batch, batch.sample.row)
        scores = [self._score(x, places, batch, rows) for rows in batch.scores]
        return lambda: replace(with_pooled(sample(logits, batch.sample), batch), scores=scores)

    def logits(self, batch: Batch) -> Float32:
        """Run the model: logits [R, vocab] of the sample rows. Stores K and V of all query tokens."""
        return self._read_out(*self._forward(batch), batch, batch.sample.row)

    @torch.inference_mode()
    def _forward(self, batch: Batch) -> tuple[Torch, Torch]:
        """The last hidden states in tiles, and the place in them of each query token."""
        tiles, places = _tile(batch.positions)
        x = torch.zeros(tiles * TILE, self._config.hidden)
        x[places] = self._embedding[_index(batch.tokens)] * self._config.embedding_scale
        for number, layer in enumerate(self._layers):
            x = x + self._config.residual_scale * self._attention(number, layer, x, places, batch)
            x = x + self._config.residual_scale * self._mlp(layer, x)
        return x, places

    def _score(self, x: Torch, places: Torch, batch: Batch, rows: ScoreRows) -> ScoredTokens:
        pieces = range(0, len(rows.row), _SCORED_ROWS)
        return joined(
            [
                score(
                    self._read_out(x, places, batch, rows.row[at : at + _SCORED_ROWS]),
                    rows.tokens[at : at + _SCORED_ROWS],
                    rows.logprobs,
                )
                for at in pieces
            ]
        )

    @torch.inference_mode()
    def _read_out(self, x: Torch, places: Torch, batch: Batch, rows: Int32) -> Float32:
        """The logits of some query tokens."""
        logits = self._final(x, places, batch, rows, lambda t: linear(t, self._head))
        return _softcap(logits * self._config.logit_scale, self._config.logit_softcap).numpy()

    @torch.inference_mode()
    def _final(self, x: Torch, places: Torch, batch: Batch, rows: Int32, then: Callable[[Torch], Torch]) -> Torch:
        """The normed final states of query tokens `rows`, each passed through `then`."""
        tiles, chosen = _tile(batch.positions[rows])
        last = torch.zeros(tiles * TILE, self._config.hidden)
        last[chosen] = x[places[_index(rows)]]
        return _tiled(lambda t: then(self._norm(t, self._final_norm)), last)[chosen]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks, all layers."""
        size = self.block_size
        for source, target in pairs:
            for pool in (self._keys, self._values):
                pool[:, target * size : (target + 1) * size] = pool[:, source * size : (source + 1) * size]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        for pool in (self._keys, self._values):
            self._by_block(pool)[:, list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks of all layers: [block, key or value, layer, token, head, dim]."""
        pools = torch.stack(
            [self._by_block(self._keys)[:, list(blocks)], self._by_block(self._values)[:, list(blocks)]]
        )
        return pools.permute(2, 0, 1, 3, 4, 5).numpy().copy()

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        for number, pool in enumerate((self._keys, self._values)):
            self._by_block(pool)[:, list(blocks)] = torch.from_numpy(saved[:, number].copy()).transpose(0, 1)

    def _by_block(self, pool: Torch) -> Torch:
        return pool.view(len(pool), self.num_blocks, self.block_size, *pool.shape[2:])

    def _attention(self, number: int, layer: _Layer, x: Torch, places: Torch, batch: Batch) -> Torch:
        config = self._config
        sections = [config.heads, config.kv_heads, config.kv_heads]

        def project(t: Torch) -> Torch:
            heads = linear(self._norm(t, layer.input_norm), layer.qkv, layer.qkv_bias).view(TILE, -1, config.head_dim)
            q, k, v = torch.split(heads, sections, dim=1)
            return torch.cat([self._norm(q, layer.q_norm), self._norm(k, layer.k_norm), v], dim=1)

        q, k, v = torch.split(_tiled(project, x)[places], sections, dim=1)
        positions = _index(batch.positions)
        slots = _index(batch.slots)
        table = self._ropes[number]
        if table is not None:
            q, k = _rotate(q, table[positions]), _rotate(k, table[positions])
        window = config.window(number) or 0
        self._keys[number, slots] = k
        self._values[number, slots] = v
        mixed = torch.zeros(len(x), config.heads * config.head_dim)
        for i in range(len(batch.seq_len)):
            length = int(batch.seq_len[i])
            context = _context(batch.block_table[i], length, self.block_size)
            start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
            for token in range(start, end):
                last = int(batch.positions[token]) + 1
                seen = context[max(0, last - window) if window else 0 : last]
                mixed[places[token]] = self._attend(q[token], self._keys[number, seen], self._values[number, seen])
        return _tiled(lambda t: self._norm(linear(t, layer.o, layer.o_bias), layer.attention_output_norm), mixed)

    def _attend(self, q: Torch, keys: Torch, values: Torch) -> Torch:
        """One token's attention: q [heads, dim] over keys and values [context, kv_heads, dim] -> [heads * dim]."""
        groups = q.reshape(self._config.kv_heads, -1, self._config.head_dim)
        scores = groups.contiguous() @ keys.permute(1, 2, 0).contiguous() * self._config.score_scale
        scores = _softcap(scores, self._config.attention_softcap)
        return (torch.softmax(scores, dim=-1) @ values.transpose(0, 1).contiguous()).reshape(-1)

    def _mlp(self, layer: _Layer, x: Torch) -> Torch:
        def tile(t: Torch) -> Torch:
            gate, up = linear(self._norm(t, layer.post_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=1)
            active = silu(gate) if self._config.activation == "silu" else gelu(gate, approximate="tanh")
            return self._norm(linear(active * up, layer.down, layer.down_bias), layer.mlp_output_norm)

        return _tiled(tile, x)

    def _norm(self, x: Torch, weight: Torch | None) -> Torch:
        if weight is None:
            return x
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._config.norm_eps) * weight


def _rotate(x: Torch, table: Torch) -> Torch:
    """RoPE in half-split order: each pair (i, i + dim/2) of the first `dim` elements rotates by its angle.

    x [tokens, heads, head_dim], table [tokens, dim] with cosines, then sines.
    """
    dim = table.shape[1]
    cos, sin = table[:, None].chunk(2, dim=-1)
    first, second = x[..., :dim].chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., dim:]], dim=-1)


def _softcap(x: Torch, cap: float | None) -> Torch:
    return x if cap is None else torch.tanh(x / cap) * cap


def _tile(positions: Int32) -> tuple[int, Torch]:
    """Number of tiles, and each token's row in them: row p % TILE of the first tile where that row is free."""
    used = np.zeros(TILE, np.int64)
    places = np.empty(len(positions), np.int64)
    for i, residue in enumerate((positions % TILE).tolist()):
        places[i] = used[residue] * TILE + residue
        used[residue] += 1
    return int(used.max()), torch.from_numpy(places)


def _tiled(function: Callable[[Torch], Torch], x: Torch) -> Torch:
    """Apply a row-wise function tile by tile. Each tile is copied to memory of its own, for equal alignment."""
    return torch.cat([function(tile.clone()) for tile in x.chunk(len(x) // TILE)]) if len(x) else function(x)


def _context(blocks: Int32, length: int, block_size: int) -> Torch:
    at = np.arange(length)
    return _index(blocks[at // block_size] * block_size + at % block_size)


def _index(values: Int32) -> Torch:
    return torch.from_numpy(values.astype(np.int64))


def _stack(*tensors: Matrix) -> Torch:
    return torch.cat([_torch(tensor) for tensor in tensors])


def _given(*tensors: Tensor | None) -> Torch | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return _stack(*given) if given else None


def _torch(tensor: Matrix) -> Torch:
    # Copy: the loader's arrays are read-only views of a file.
    return torch.from_numpy(dequantize(tensor).copy())
