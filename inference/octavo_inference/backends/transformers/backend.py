"""The transformers backend: a torch module over the paged KV pool. Slower than native kernels, with far more models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_inference.backends.transformers import attention
from octavo_inference.backends.transformers.gathered_attention import as_index
from octavo_inference.backends.transformers.slot_pools import KvPools
from octavo_inference.core.backend import CompletedStep, ComputedStep, StepHandle, WithoutAdapters, WithoutStates
from octavo_inference.core.gather import Batch, gather
from octavo_inference.core.model_input import Float32, Int32, RowStep, StepResult
from octavo_inference.core.pooling import add_states, pooled_tokens, with_pooled
from octavo_inference.core.sampling import sample, score
from octavo_inference.models.layer_groups import one_group

DEFAULT_BLOCK_SIZE = 16
SCORED_TOKENS = 256
"""Tokens of prompts with log-probabilities in one step."""


class TransformersBackend(WithoutStates, WithoutAdapters):
    """`Backend` over a transformers module and the `pools` of its attention calls, both on one device.

    All work on the device is inside `watched`, which tells a request's error from the loss of the device.
    """

    def __init__(
        self,
        name: str,
        module: Any,
        pools: KvPools,
        *,
        vocab: int,
        watched: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self.steps_ahead = 0
        self.decode_runs = False
        # The module returns the logits of all scored tokens at once.
        self.max_prompt_scores: int | None = SCORED_TOKENS
        self.block_size = pools.block_size
        self.num_blocks = pools.num_blocks
        self.layout = one_group(len(pools))  # its masks decide what a layer sees: no block is freed
        self.vocab_size = vocab
        self._module = module
        # The decoder without lm_head. Its output is normed; a module that is no such pair gives no embeddings.
        self._decoder = None if module.base_model is module else module.base_model
        self.hidden_size = 0 if self._decoder is None else int(module.config.get_text_config().hidden_size)
        self._selects_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        self._pools = pools
        self._watched = watched

    def launch(self, step: RowStep) -> StepHandle:
        """Gather a step and run it."""
        result = self._compute(gather(step))
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
        scored = [rows.row for rows in batch.scores]
        logits = self._run(batch, np.concatenate([batch.sample.row, *scored]))
        at = np.cumsum([len(batch.sample.row), *map(len, scored)])
        scores = [
            score(logits[first:end], rows.tokens, rows.logprobs)
            for first, end, rows in zip(at, at[1:], batch.scores, strict=False)
        ]
        return lambda: with_pooled(replace(sample(logits[: at[0]], batch.sample), scores=scores), batch)

    def logits(self, batch: Batch) -> Float32:
        """Run the model: logits [R, vocab] of the sample rows.

        Stores K and V of all query tokens, and adds pooled states to the batch's sums.
        """
        return self._run(batch, batch.sample.row)

    @torch.inference_mode()
    def _run(self, batch: Batch, wanted: Int32) -> Float32:
        """Logits of some query tokens."""
        with self._watched():
            return self._logits(batch, wanted)

    def _logits(self, batch: Batch, wanted: Int32) -> Float32:
        device = self._module.device
        rows, positions = as_index(wanted, device), as_index(batch.positions, device)[None]
        step = self._pools.begin(batch)
        arguments = {"logits_to_keep": rows} if self._selects_rows else {}
        with attention.running(step), self._pooling(batch):
            found = forward(self._module, batch.tokens, position_ids=positions, **arguments)
        if step.calls != len(self._pools):
            raise RuntimeError(f"{step.calls} attention calls in a step, expected {len(self._pools)}")
        chosen = found[0] if self._selects_rows else found[0, rows]
        return np.ascontiguousarray(chosen[:, : self.vocab_size].float().cpu().numpy())

    @contextmanager
    def _pooling(self, batch: Batch) -> Iterator[None]:
        """Adds the decoder's output of the pooled tokens to the batch's sums, in the forward pass inside."""
        if batch.pooling is None or self._decoder is None:
            yield
            return
        tokens = as_index(pooled_tokens(batch.pooling), self._module.device)

        def add(_module: Any, _inputs: Any, output: Any) -> None:
            add_states(batch, output.last_hidden_state[0, tokens].float().cpu().numpy())

        hook = self._decoder.register_forward_hook(add)
        try:
            yield
        finally:
            hook.remove()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy KV of whole blocks, all layers."""
        with self._watched():
            self._pools.copy_blocks(pairs)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Write zeros to whole blocks, all layers."""
        with self._watched():
            self._pools.clear_blocks(blocks)

    def to_host(self, blocks: Sequence[int]) -> NDArray[np.generic]:
        """Copy whole blocks of all layers: [block, bytes]."""
        with self._watched():
            return self._pools.to_host(blocks)

    def from_host(self, saved: NDArray[np.generic], blocks: Sequence[int]) -> None:
        """Copy rows returned by `to_host` into as many blocks."""
        with self._watched():
            self._pools.from_host(saved, blocks)


def forward(module: Any, tokens: Int32, **arguments: Tensor) -> Tensor:
    """Logits [rows, tokens, width] of token ids [rows, tokens] or [tokens]."""
    ids = as_index(np.atleast_2d(tokens), module.device)
    # The mask means "no padding": without it transformers derives sequence boundaries from the positions.
    result = module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **arguments)
    logits: Tensor = result.logits
    return logits
