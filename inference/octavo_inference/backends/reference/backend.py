"""The reference backend: plain float32 torch, op by op, bitwise independent of the batch.

Every row-wise op runs on tiles of one fixed shape (`tiles`), attention token by token with shapes that depend on the
position alone. A token's result then has the same bits in every schedule: prompt computed at once, in chunks, after a
prefix hit or after a preemption, with any other sequences in the batch. Slow by design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch
from torch.nn.functional import linear

from octavo_inference.backends.reference.functions import norm_of, softcap
from octavo_inference.backends.reference.layer import Layer
from octavo_inference.backends.reference.tiles import TILE, float32, index, optional, place_tokens, tiled
from octavo_inference.core.backend import CompletedStep, ComputedStep, StepHandle
from octavo_inference.core.gather import Batch, ScoreRows, gather
from octavo_inference.core.model_input import Float32, Int32, RowStep, ScoredTokens, StepResult
from octavo_inference.core.pooling import add_states, pooled_tokens, with_pooled
from octavo_inference.core.sampling import joined, sample, score
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

DEFAULT_BLOCK_SIZE = 16
KV_ELEMENT_BYTES = 4
_SCORED_ROWS = 8 * TILE  # rows of logits that exist at a time while a prompt is scored


class ReferenceBackend:
    """`Backend` in float32 torch. Each layer owns its part of the pool: tensors [blocks * block_size, ...]."""

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
        self._embedding = float32(weights.embedding)
        self._positions, self._token_type = optional(weights.positions), optional(weights.token_type)
        self._embedding_norm = norm_of(
            config, weights.embedding_norm, weights.embedding_norm_bias, exists=config.embedding_norm
        )
        self._final_norm = norm_of(
            config, weights.final_norm, weights.final_norm_bias, exists=not config.post_residual_norms
        )
        self._head = self._embedding if weights.lm_head is weights.embedding else float32(weights.lm_head)
        self._head_bias = optional(weights.head_bias)
        ropes = [config.rope(layer) for layer in range(config.layers)]
        tables = {rope: torch.from_numpy(rope.table(max_model_len)) for rope in ropes if rope is not None}
        slots = num_blocks * block_size
        self._layers = [
            Layer(
                config,
                number,
                layer,
                slots=slots,
                block_size=block_size,
                rope=None if rope is None else tables[rope],
            )
            for number, (layer, rope) in enumerate(zip(weights.layers, ropes, strict=True))
        ]
        self._pools = [pool for layer in self._layers for pool in layer.pools]

    def launch(self, step: RowStep) -> StepHandle:
        """Gather a step and run it."""
        batch = gather(step)
        result = self._compute(batch)
        return ComputedStep(result) if step.guided else CompletedStep(result())

    def part_seconds(self) -> dict[str, float]:
        """Not measured."""
        return {}

    def expert_tokens(self) -> None:
        """Not counted."""

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
        tiles, places = place_tokens(batch.positions)
        x = torch.zeros(tiles * TILE, self._config.hidden)
        embedded = self._embedding[index(batch.tokens)] * self._config.embedding_scale
        if self._positions is not None:
            embedded = embedded + self._positions[index(batch.positions)]
        x[places] = embedded if self._token_type is None else embedded + self._token_type
        x = tiled(self._embedding_norm, x)
        for layer in self._layers:
            x = layer(x, places, batch)
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
        logits = self._final(x, places, batch, rows, lambda t: linear(t, self._head, self._head_bias))
        return softcap(logits * self._config.logit_scale, self._config.logit_softcap).numpy()

    @torch.inference_mode()
    def _final(self, x: Torch, places: Torch, batch: Batch, rows: Int32, then: Callable[[Torch], Torch]) -> Torch:
        """The normed final states of query tokens `rows`, each passed through `then`."""
        tiles, chosen = place_tokens(batch.positions[rows])
        last = torch.zeros(tiles * TILE, self._config.hidden)
        last[chosen] = x[places[index(rows)]]
        return tiled(lambda t: then(self._final_norm(t)), last)[chosen]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks, all layers."""
        for source, target in pairs:
            for pool in self._pools:
                blocks = self._by_block(pool)
                blocks[target] = blocks[source]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        for pool in self._pools:
            self._by_block(pool)[list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks of all layers: [block, elements]."""
        return torch.cat([self._by_block(pool)[list(blocks)] for pool in self._pools], dim=1).numpy()

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        start = 0
        for pool in map(self._by_block, self._pools):
            end = start + pool.shape[1]
            pool[list(blocks)] = torch.from_numpy(saved[:, start:end].copy())
            start = end

    def _by_block(self, pool: Torch) -> Torch:
        return pool.view(self.num_blocks, -1)
