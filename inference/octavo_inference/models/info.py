"""Protocol of a model's description, for all backends."""

from __future__ import annotations

from typing import Protocol

from octavo_inference.models.task import Task
from octavo_protocol.engine_settings import PoolingName


class ModelInfo(Protocol):
    """A decoder as engine, pool and tokenizer see it."""

    @property
    def architecture(self) -> str:
        """The model's family, for people."""
        ...

    @property
    def vocab(self) -> int:
        """Number of token ids, with those for tokens that adapters add."""
        ...

    @property
    def added_ids(self) -> int:
        """How many of the last ids are for tokens that adapters add."""
        ...

    @property
    def own_vocab(self) -> int:
        """Number of token ids of the model itself."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest sequence it was trained for, in tokens."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        ...

    @property
    def task(self) -> Task:
        """What it computes: the next token, embeddings alone, or scores of pairs of texts."""
        ...

    @property
    def pooling(self) -> PoolingName:
        """The pooling of its hidden states where nothing else names one."""
        ...

    @property
    def bidirectional(self) -> bool:
        """True if tokens attend to those after them, so that a prompt is computed in one step."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the weights."""
        ...

    @property
    def state_bytes(self) -> int:
        """Size of the states of one sequence over all layers; 0 without state layers."""
        ...

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Size of one token's K and V over all layers."""
        ...
