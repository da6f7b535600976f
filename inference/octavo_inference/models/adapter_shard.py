"""A rank's part of an adapter, cut as `models.shard` cuts the matrices that it changes. Pure; views where they do.

rows of a matrix are divided       `down` whole, rows of `up` and of the bias
columns are divided                columns of `down`, `up` whole: one term of the sum that `all_reduce` completes,
                                   to which rank 0 alone adds the bias
the matrix is whole on all ranks   whole
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import Adapter, LowRank
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import vocab_share

_ROWS = frozenset(
    {
        *("q", "attention_gate", "gate", "up"),
        *("experts.gate", "experts.up", "experts.shared_gate", "experts.shared_up"),
        *("latent.q", "latent.q_up", "latent.k_up", "latent.v_up"),
    }
)
# Rows of key-value heads, each on several ranks if there are fewer heads than ranks.
_KV_ROWS = frozenset({"k", "v"})
_COLUMNS = frozenset({"o", "down", "experts.down", "experts.shared_down"})
_WHOLE = frozenset({"latent.q_down", "latent.kv_down"})


def shard_adapter(adapter: Adapter, config: ModelConfig, *, rank: int, size: int) -> Adapter:
    """The part of `rank` of `size`. `config` is that of the whole model, which `models.shard` can divide.

    Raises `ModelError` for changes of matrices that are not divided between ranks.
    """
    if size == 1:
        return adapter
    head, share = adapter.lm_head, vocab_share(config.vocab, size)
    return replace(
        adapter,
        layers=tuple(_layer(number, layer, config, rank, size) for number, layer in enumerate(adapter.layers)),
        lm_head=None if head is None else _rows(head, rank * share, min((rank + 1) * share, config.vocab)),
    )


def _layer(
    number: int, layer: Mapping[str, LowRank], config: ModelConfig, rank: int, size: int
) -> Mapping[str, LowRank]:
    replicas = max(1, size // config.kv_heads)
    cut: dict[str, LowRank] = {}
    for name, part in layer.items():
        field = name.rstrip("0123456789").removesuffix(".")  # of one expert: `experts.up.7`
        if field in _ROWS:
            cut[name] = _part(part, rank, size)
        elif field in _KV_ROWS:
            cut[name] = _part(part, rank // replicas, size // replicas)
        elif field in _COLUMNS:
            cut[name] = _columns(part, rank, size)
        elif field in _WHOLE:
            cut[name] = part
        else:
            raise ModelError(f"it changes {name} of layer {number}, which is not divided between GPUs")
    return cut


def _part(part: LowRank, rank: int, size: int) -> LowRank:
    count = len(part.up) // size
    return _rows(part, rank * count, (rank + 1) * count)


def _rows(part: LowRank, start: int, end: int) -> LowRank:
    return LowRank(part.down, part.up[start:end], None if part.bias is None else part.bias[start:end])


def _columns(part: LowRank, rank: int, size: int) -> LowRank:
    count = part.down.shape[1] // size
    return LowRank(part.down[:, rank * count : (rank + 1) * count], part.up, part.bias if rank == 0 else None)
