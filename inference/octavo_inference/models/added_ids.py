"""Room for tokens that adapters add to a model's vocabulary.

The matrices get rows for ids behind the model's own, and their logits a bias of -inf, so that they are never chosen. An
adapter writes its own rows and logits over those of its ids, as over any others (`TokenRows`). `Engine` checks the ids
that requests name.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rows import reordered
from octavo_inference.models.weights import Tensor, Weights, dequantize

_FIELD = "max_added_tokens"


def with_added_ids(config: ModelConfig, weights: Weights, count: int) -> tuple[ModelConfig, Weights]:
    """The model with `count` more ids. Floats of embedding and head are copied, groups are read when they are needed.

    Raises `SettingsError` for a model that has no logits of -inf.
    """
    if count == 0:
        return config, weights
    if config.logit_softcap is not None:
        raise SettingsError(
            f"{_FIELD} {count}: this model bounds its logits, so an id without a token cannot be excluded; set it to "
            "0 and train tokens that the model has spare",
            _FIELD,
        )
    # Copies of the last row: there are formats that cannot store a zero.
    order = np.append(np.arange(config.vocab), np.full(count, config.vocab - 1))
    embedding = weights.embedding
    longer = reordered(embedding, order)
    embedding.release()
    changed = replace(config, vocab=config.vocab + count, added_ids=count)
    if config.task != "generate":
        return changed, replace(weights, embedding=longer, lm_head=longer)
    own = np.zeros(config.vocab, np.float32) if weights.head_bias is None else dequantize(weights.head_bias)
    bias = np.append(own, np.full(count, -np.inf, np.float32)).astype(np.float32)
    head = longer if weights.lm_head is embedding else reordered(weights.lm_head, order)
    weights.lm_head.release()
    return replace(changed, head_bias=True), replace(
        weights, embedding=longer, lm_head=head, head_bias=Tensor("f32", bias.shape, bias)
    )


def copied_bytes(config: ModelConfig, weights: Weights) -> int:
    """Bytes of embedding and head that room for more ids has copied into memory."""
    outer = {id(each): each for each in (weights.embedding, weights.lm_head)}
    copies = outer.values() if config.added_ids else ()
    return sum(each.nbytes for each in copies if isinstance(each, Tensor))
