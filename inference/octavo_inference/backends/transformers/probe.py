"""Probes a module: the KV shapes it stores, and whether its logits over paged KV match its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo_inference.backends.transformers import attention
from octavo_inference.backends.transformers.attention import KvShape
from octavo_inference.backends.transformers.backend import TransformersBackend, forward
from octavo_inference.backends.transformers.gathered_attention import recorded_pass
from octavo_inference.backends.transformers.slot_pools import KvPools
from octavo_inference.checkpoints.transformers_config import ForeignConfig
from octavo_inference.common.errors import ModelError
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.core.model_input import Float32, Int32

# Relative to the norm of the logits, per data type. A systematic error is as large as the logits themselves.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
MakePools = Callable[[Sequence[KvShape], int, int], KvPools]
"""Pools for attention calls of these shapes: number of blocks, and tokens of a block."""

_LEFT_OUT = {torch.float32: 0, torch.bfloat16: 8}
"""The worst of so many positions does not count, 0 for none: rounding may turn a router's choice in a few of them."""
_PROBE_TOKENS = 40
_PROBE_BLOCK = 8


def prepare(module: Any, config: ForeignConfig, folder: Path, make_pools: MakePools) -> list[KvShape]:
    """Install Octavo's attention in a module and find the KV shapes of its calls.

    Compares the paged path with the module's own. Raises `ModelError` when they differ, so that this backend refuses a
    model that it would compute wrongly.
    """
    try:
        return _probe(module, config.vocab, config.max_positions, make_pools)
    except ModelError as error:
        raise ModelError(f"{folder}: {config.architecture} cannot be served: {error}") from error


@torch.inference_mode()
def _probe(module: Any, vocab: int, max_positions: int, make_pools: MakePools) -> list[KvShape]:
    """Compare two sequences, one of them in two chunks and a decode, with the same sequences without a cache."""
    count = min(_PROBE_TOKENS, max_positions)
    tokens = np.random.default_rng(0).integers(0, vocab, (2, count)).astype(np.int32)
    try:
        wanted = forward(module, tokens)[..., :vocab].reshape(-1, vocab).float().cpu().numpy()
        shapes = _shapes(module, tokens[0])
        found = _paged_logits(module, make_pools, shapes, vocab, tokens)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"its computation of two short sequences fails: {type(error).__name__}: {error}") from error
    off = difference(found, wanted, _LEFT_OUT[module.dtype])
    if not off <= TOLERANCE[module.dtype]:
        raise ModelError(
            f"its logits over paged KV differ from its own by {off:.2g} of their size; something in it depends "
            "on more than tokens, positions and softmax attention"
        )
    return shapes


def difference(found: Float32, wanted: Float32, left_out: int) -> float:
    """Relative size of the difference of logits [position, vocab], without the worst of `left_out` positions."""
    errors = np.sort(np.linalg.norm(found - wanted, axis=1))
    if np.isnan(errors).any():
        return float("nan")
    counted = len(errors) - (len(errors) // left_out if left_out else 0)
    return float(np.linalg.norm(errors[:counted]) / (np.linalg.norm(wanted) or 1.0))


def _shapes(module: Any, tokens: Int32) -> list[KvShape]:
    attention.register()
    module.set_attn_implementation(attention.NAME)
    step = recorded_pass(len(tokens), module.device)
    with attention.running(step):
        forward(module, tokens, position_ids=torch.arange(len(tokens), device=module.device)[None])
    if not step.shapes:
        raise ModelError("it computes attention outside transformers' attention interface, so its KV cannot be paged")
    return step.shapes


def _paged_logits(module: Any, make_pools: MakePools, shapes: Sequence[KvShape], vocab: int, tokens: Int32) -> Float32:
    """Logits of every token of two sequences.

    First half of the first; then the rest of it and the second together, except their last tokens, which are decodes.
    """
    count = tokens.shape[1]
    per_sequence = -(-count // _PROBE_BLOCK)
    pools = make_pools(shapes, 2 * per_sequence, _PROBE_BLOCK)
    backend = TransformersBackend("probe", module, pools, vocab=vocab)
    # Interleaved, so that no context is contiguous in the pool.
    table = np.arange(2 * per_sequence, dtype=np.int32).reshape(per_sequence, 2).T[:, ::-1]
    found = np.empty((2, count, vocab), np.float32)
    half, last = count // 2, count - 1
    for first, end in pairwise([(0, 0), (half, 0), (last, last), (count, count)]):
        parts = [(i, start, stop) for i, (start, stop) in enumerate(zip(first, end, strict=True)) if start < stop]
        if not parts:
            continue
        logits, done = backend.logits(_probe_batch(tokens, table, parts)), 0
        for i, start, stop in parts:
            found[i, start:stop] = logits[done : done + stop - start]
            done += stop - start
    return found.reshape(-1, vocab)


def _probe_batch(tokens: Int32, table: Int32, parts: list[tuple[int, int, int]]) -> Batch:
    """Tokens [start, end) of the given sequences, all of them sample rows."""
    positions = np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end in parts])
    owners = np.concatenate([np.full(end - start, i, np.int32) for i, start, end in parts])
    rows = len(positions)
    ends = np.cumsum([0, *(end - start for _, start, end in parts)])
    return Batch(
        tokens=tokens[owners, positions],
        positions=positions,
        slots=(table[owners, positions // _PROBE_BLOCK] * _PROBE_BLOCK + positions % _PROBE_BLOCK)[None],
        query_start=ends.astype(np.int32),
        seq_len=np.array([end for _, _, end in parts], np.int32),
        block_table=table[[i for i, _, _ in parts]][None],
        sample=SampleRows.greedy(np.arange(rows, dtype=np.int32), positions + 1),
    )
