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

from octavo_inference.backends.reference.adapters import PreparedAdapter, prepare, step_changes
from octavo_inference.backends.reference.functions import norm_of, softcap
from octavo_inference.backends.reference.layer import Layer
from octavo_inference.backends.reference.pool_rows import copy_rows, read_rows, write_rows
from octavo_inference.backends.reference.tiles import TILE, float32, index, optional, place_tokens, tiled
from octavo_inference.core.backend import CompletedStep, ComputedStep, StepHandle
from octavo_inference.core.gather import Batch, ScoreRows, gather
from octavo_inference.core.model_input import Float32, Int32, RowStep, ScoredTokens, StepResult
from octavo_inference.core.pooling import add_states, pooled_tokens, with_pooled
from octavo_inference.core.sampling import joined, sample, score
from octavo_inference.models.adapter import PLAIN_FIELDS, Adapter, require_supported
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.weights import Weights

DEFAULT_BLOCK_SIZE = 16
KV_ELEMENT_BYTES = 4
FIELDS = (
    *PLAIN_FIELDS,
    "experts.gate",
    "experts.up",
    "experts.down",
    "experts.shared_gate",
    "experts.shared_up",
    "experts.shared_down",
)
"""How the names of the matrices begin that adapters may change."""
_SCORED_ROWS = 8 * TILE  # rows of logits that exist at a time while a prompt is scored


class ReferenceBackend:
    """`Backend` in float32 torch.

    Each layer owns its part of the pool: tensors [blocks * block_size, ...], and states [slots, ...].
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        state_slots: int = 0,
        adapter_slots: int = 0,
    ) -> None:
        self.name = "reference"
        self.steps_ahead = 0
        self.decode_runs = False
        self.max_prompt_scores: int | None = None
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.state_slots = state_slots
        self.adapter_slots = adapter_slots
        self._adapters: list[PreparedAdapter | None] = [None] * adapter_slots
        self.vocab_size = config.vocab
        self.hidden_size = config.hidden
        self._config = config
        self._embedding = float32(weights.embedding)
        self._positions, self._token_type = optional(weights.positions), optional(weights.token_type)
        self._second_token_type = optional(weights.second_token_type)
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
        self.layout = pool_layout(config)
        shared: dict[int, list[Torch]] = {}
        self._layers = []
        for number, (layer, rope) in enumerate(zip(weights.layers, ropes, strict=True)):
            group, at = self.layout.place(number) if config.part(number).attention else (0, -1)
            made = Layer(
                config,
                number,
                layer,
                slots=num_blocks * block_size,
                block_size=block_size,
                rope=None if rope is None else tables[rope],
                state_slots=state_slots,
                group=group,
                shared=shared.get(at),
            )
            shared.setdefault(at, made.pools)
            self._layers.append(made)
        # Views of what blocks and slots of states hold: [blocks, elements] and [slots, elements].
        pools = [pool for at, pools in shared.items() if at >= 0 for pool in pools]
        self._blocks = [pool.view(num_blocks, -1) for pool in pools]
        self._states = [state.flatten(1) for layer in self._layers for state in layer.states]

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
        add_states(batch, self._final(x, places, batch, pooled_tokens(batch.pooling)).numpy())
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
        embedded = self._embed(batch) * self._config.embedding_scale
        if self._positions is not None:
            embedded = embedded + self._positions[index(batch.positions)]
        if self._token_type is not None:
            embedded = embedded + self._token_type
        if self._token_type is not None and self._second_token_type is not None and len(batch.token_types):
            embedded += index(batch.token_types)[:, None] * (self._second_token_type - self._token_type)
        x[places] = embedded
        changes = step_changes(self._adapters, batch.adapter, places, len(x))
        x = tiled(self._embedding_norm, x)
        for number, layer in enumerate(self._layers):
            x = layer(x, places, batch, changes.layer(number))
        return x, places

    def _embed(self, batch: Batch) -> Torch:
        """The embeddings of a step's tokens, with the changes of their adapters."""
        if not len(batch.adapter):
            return self._embedding[index(batch.tokens)]
        rows = []
        for token, slot in zip(batch.tokens.tolist(), batch.adapter.tolist(), strict=True):
            adapter = self._adapters[slot] if slot >= 0 else None
            own = None if adapter is None else adapter.rows["embedding"].get(token)
            row = self._embedding[token] if own is None else own[0]
            if own is None and adapter is not None and "embedding" in adapter.outer:
                down, up, _ = adapter.outer["embedding"]
                row = row + linear(down[:, token][None].clone(), up)[0]
            rows.append(row)
        return torch.stack(rows)

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
        states = self._final(x, places, batch, rows)
        tiles, chosen = place_tokens(batch.positions[rows])
        last = torch.zeros(tiles * TILE, self._config.hidden)
        last[chosen] = states
        adapter = batch.adapter[rows] if len(batch.adapter) else batch.adapter
        changes = step_changes(self._adapters, adapter, chosen, len(last)).outer
        product = tiled(lambda t: linear(t, self._head, self._head_bias), last)
        logits = changes.add("lm_head", last, product)[chosen]
        for row, slot in enumerate(adapter.tolist()):
            own = self._adapters[slot] if slot >= 0 else None
            for token, (values, bias) in ({} if own is None else own.rows["lm_head"]).items():
                logits[row, token] = linear(states[row : row + 1].clone(), values[None])[0, 0] + bias
        return softcap(logits * self._config.logit_scale, self._config.logit_softcap).numpy()

    @torch.inference_mode()
    def _final(self, x: Torch, places: Torch, batch: Batch, rows: Int32) -> Torch:
        """The normed final states of query tokens `rows`."""
        tiles, chosen = place_tokens(batch.positions[rows])
        last = torch.zeros(tiles * TILE, self._config.hidden)
        last[chosen] = x[places[index(rows)]]
        return tiled(self._final_norm, last)[chosen]

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:
        """Bring an adapter into the form that `load_adapter` takes. Raises `ModelError` for changes it cannot apply."""
        require_supported(adapter, FIELDS)
        return prepare(adapter)

    def load_adapter(self, slot: int, adapter: PreparedAdapter | None) -> None:
        """Put an adapter into a slot, or empty it."""
        self._adapters[slot] = adapter

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks, all layers."""
        copy_rows(self._blocks, pairs)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        for pool in self._blocks:
            pool[list(blocks)] = 0

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks of all layers: [block, elements]."""
        return read_rows(self._blocks, blocks)

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        write_rows(self._blocks, saved, blocks)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the states of whole slots, all layers."""
        copy_rows(self._states, pairs)

    def states_to_host(self, slots: Sequence[int]) -> NDArray[np.generic]:
        """Copy the states of whole slots: [slot, elements]."""
        return read_rows(self._states, slots)

    def states_from_host(self, saved: NDArray[np.generic], slots: Sequence[int]) -> None:
        """Copy rows returned by `states_to_host` into as many slots."""
        write_rows(self._states, saved, slots)
