"""The one batch shape: prefill chunks and decode tokens are a ragged list of query tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows whose logits are needed, and how to choose from them. All arrays have length R.

    `row` indexes the batch's query tokens; `position` is the position the chosen token will take, which with `seed`
    keys its random number. `temperature` 0 is greedy; `top_k` 0 keeps all. `logprobs` is the number of alternatives to
    report, -1 for none. `adjust[i]` is None for rows without penalties or banned tokens.
    """

    row: Int32
    position: Int32
    seed: NDArray[np.uint64]
    temperature: Float32
    top_p: Float32
    top_k: Int32
    min_p: Float32
    logprobs: Int32
    adjust: list[LogitAdjust | None]

    @classmethod
    def greedy(cls, row: Int32, position: Int32) -> SampleRows:
        """The most likely token of each row, nothing reported."""
        count = len(row)
        return cls(
            row=row,
            position=position,
            seed=np.zeros(count, np.uint64),
            temperature=np.zeros(count, np.float32),
            top_p=np.ones(count, np.float32),
            top_k=np.zeros(count, np.int32),
            min_p=np.zeros(count, np.float32),
            logprobs=np.full(count, -1, np.int32),
            adjust=[None] * count,
        )


@dataclass(frozen=True, slots=True)
class LogitAdjust:
    """Changes to one row of logits before sampling.

    `prompt` and `output` are the tokens so far (repetition penalty sees both; presence and frequency only the output,
    as in the OpenAI API). `banned` ids get -inf (end-of-sequence and stop ids before `min_tokens`).
    """

    prompt: Int32
    output: Int32
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    banned: Int32


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work. T query tokens of B sequences.

    `tokens[T]`, `positions[T]`; `slots[T]` = block * block_size + offset where the token's K and V go.
    `query_start[B+1]` delimits each sequence's query tokens; `seq_len[B]` counts tokens after the step;
    `block_table[B, columns]` lists each sequence's blocks; entries behind its last one are arbitrary valid blocks.
    Several sample rows may name one query token (siblings of a request). The arrays last until the next step.
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    query_start: Int32
    seq_len: Int32
    block_table: Int32
    sample: SampleRows


@dataclass(frozen=True, slots=True)
class RowChange:
    """Integers of the row table that are not as the backend last saw them: `values` from `column` on of a `row`.

    `field` is "tokens" (prompt and output by position), "blocks" (the block table), or "sampling": `SAMPLING` columns,
    floats as their bits.
    """

    field: Literal["tokens", "blocks", "sampling"]
    row: int
    column: int
    values: Int32


SAMPLING = ("seed_low", "seed_high", "temperature", "top_p", "top_k", "min_p")
"""Columns of a row's sampling parameters, as in `SampleRows`."""


@dataclass(frozen=True, slots=True)
class Penalty:
    """Changes to a row of logits whose tokens the row table has: the first `prompt_len` of `total` are the prompt.

    Otherwise as `LogitAdjust`.
    """

    prompt_len: int
    total: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    banned: Int32


@dataclass(frozen=True, slots=True)
class RowSamples:
    """Tokens to choose, R of them: from the logits of query token `query[R]`, for the sequence in `row[R]`.

    `position[R]` is where the token goes in its row: the backend writes it there, too. `logprobs` as in `SampleRows`.
    """

    query: Int32
    row: Int32
    position: Int32
    logprobs: Int32
    penalties: list[Penalty | None]


@dataclass(frozen=True, slots=True)
class RowStep:
    """One step's work for a backend that keeps the row table: what changed in it, then who computes what.

    `row[B]` is each sequence's row; `query_start[B+1]` and `seq_len[B]` as in `Batch`. Tokens, blocks and sampling
    parameters are those of the rows, once `changes` are made in order. The size of this goes by what changed and by the
    number of sequences, never by their lengths. The arrays last until the next step.
    """

    changes: list[RowChange]
    row: Int32
    query_start: Int32
    seq_len: Int32
    sample: RowSamples


@dataclass(frozen=True, slots=True)
class StepResult:
    """`tokens[R]` chosen for the sample rows; for rows that asked, `logprob[R]`, `rank[R]`, `top[i]` = (ids, logprobs).

    A token of -1 stands for a row whose logits are no numbers. The arrays may belong to the backend and last
    until its next step.
    """

    tokens: Int32
    logprob: Float32
    rank: Int32
    top: list[tuple[Int32, Float32] | None]
