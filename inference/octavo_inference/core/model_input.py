"""One step's work as the engine passes it to a backend: row table changes, and the tokens of each sequence to compute.

The row table has one fixed row per running sequence. A backend that keeps a copy applies the changes. The others gather
the batch of a step from the engine's table (`core.gather`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
)

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

SAMPLING = ("seed_low", "seed_high", "temperature", "top_p", "top_k", "min_p")
"""Columns of a row's sampling parameters: `temperature` 0 is greedy, `top_k` 0 keeps all; floats as their bits."""

RULES_HEADER = 4
RULES_WIDTH = RULES_HEADER + 2 * MAX_LOGIT_BIAS + MAX_LOGPROB_TOKEN_IDS + MAX_BAD_WORDS + MAX_BAD_WORD_TOKENS
"""Integers of a row's rules, and of their counts in front (`core.logit_rules`)."""

TableField = Literal["tokens", "blocks", "sampling", "rules", "mask"]


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of running sequences, in int32.

    `tokens[rows, max_len]`: prompt and output by position. `blocks[rows, groups, columns]`: the block tables, one per
    group of layers (`models.layer_groups`). Entries before the first token that a group's window still needs, and after
    a sequence's last block, are arbitrary valid blocks: they must not be read.
    `sampling[rows, 6]`: the columns of `SAMPLING`. `rules[rows, RULES_WIDTH]` and `mask[rows, vocab / 32]`: see
    `core.logit_rules`; arbitrary where a `Penalty` does not name them.
    `sums[rows, hidden]`, float32: sums of hidden states for embeddings (`RowPooling`), written by the backend.
    """

    tokens: Int32
    blocks: Int32
    sampling: Int32
    rules: Int32
    mask: Int32
    sums: Float32
    block_size: int

    @classmethod
    def zeros(
        cls, rows: int, max_len: int, block_size: int, vocab: int, hidden: int = 0, groups: int = 1, masks: int = 0
    ) -> RowTable:
        """Allocate an empty table for `max_len` tokens per sequence and blocks of `block_size` tokens.

        `masks` rows of masks follow those of the sequences, for samples that need one of their own.
        """
        widths = max_len, len(SAMPLING), RULES_WIDTH
        tokens, sampling, rules = (np.zeros((rows, width), np.int32) for width in widths)
        mask = np.zeros((rows + masks, mask_width(vocab)), np.int32)
        blocks = np.zeros((rows, groups, -(-max_len // block_size)), np.int32)
        return cls(tokens, blocks, sampling, rules, mask, np.zeros((rows, hidden), np.float32), block_size)


def mask_width(vocab: int) -> int:
    """Integers of a row's mask: a bit per id."""
    return -(-vocab // 32)


def sampling_columns(
    *, seed: int = 0, temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> Int32:
    """A row's sampling parameters in table format; greedy by default."""
    columns = np.empty(len(SAMPLING), np.int32)
    columns[:2] = np.array([seed], np.uint64).view(np.int32)
    # Adding 0 turns -0 into 0. The bits of -0 are not those of the smallest number.
    columns[[2, 3, 5]] = np.array([temperature + 0.0, top_p, min_p + 0.0], np.float32).view(np.int32)
    columns[4] = top_k
    return columns


class RowChange(NamedTuple):  # up to one per row and step: a dataclass takes three times as long to construct
    """Row table integers that changed since the backend's last step: `values` from `column` on of a `row`.

    The columns of `blocks` are those of all groups, one group after another.
    """

    field: TableField
    row: int
    column: int
    values: Int32


class Penalty(NamedTuple):  # one per row and step, as `RowChange`
    """Changes to a row of logits before sampling, derived from the first `total` tokens of its row in the table.

    The first `prompt_len` of these are the prompt, the others the output. The repetition penalty counts both; presence
    and frequency only the output, as in the OpenAI API. `banned` ids get -inf (end-of-sequence and stop ids before
    `min_tokens`). `rules` and `mask`: the row's entries of these fields of the table apply. `mask_row`: the row of the
    mask, if it is another one than that of the sequence.
    """

    prompt_len: int
    total: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    banned: Int32
    rules: bool = False
    mask: bool = False
    mask_row: int | None = None


@dataclass(frozen=True, slots=True)
class RowSamples:
    """R tokens to sample: from the logits of query token `query[R]`, for the sequence in `row[R]`.

    `position[R]` is the token's position in its row; with the seed it keys the random number. A backend with its own
    table writes the token there. `logprobs` is the number of alternatives to report, -1 for none. `penalties[i]` is
    None for rows whose logits do not change. Several entries may name one query token (siblings of a request).
    `report_ids[R]` is 1 if the alternatives are the ids in the row's rules and not the best ones; empty if no row is.
    """

    query: Int32
    row: Int32
    position: Int32
    logprobs: Int32
    penalties: list[Penalty | None]
    report_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))


class PromptScores(NamedTuple):
    """Log-probabilities of prompt tokens to report: those that follow `length` query tokens of a step, from `query` on.

    The first of these query tokens is at `position` of `row`. `logprobs` is the number of alternatives.
    """

    query: int
    row: int
    position: int
    length: int
    logprobs: int


@dataclass(frozen=True, slots=True)
class RowPooling:
    """Hidden states to sum for embeddings, of P sequences: the states after the final norm, before lm_head.

    The states of query tokens `first[P]` to `end[P]` are added in float32, one after another, to the sum of the
    sequence in `row[P]`. So a sum has the same bits however its prompt is divided into chunks. Where `fresh[P]` is 1,
    the sum starts from zero. Where `done[P]` is 1, the result of the step has it.
    """

    row: Int32
    first: Int32
    end: Int32
    fresh: Int32
    done: Int32


class DecodeRun(NamedTuple):
    """Several steps in one launch: each sequence decodes, and each step computes the tokens that the last one sampled.

    The block table covers all steps, and penalties count the tokens of earlier ones. The launch ends after `steps`
    steps, or earlier. It ends after a step in which a token is negative, or is one of the ids
    `end_ids[end_start[i] : end_start[i + 1]]` of its sample row i. It ends after a step at whose end the file
    descriptor `message_fd` is readable (-1: none). And it ends before a step that would take it beyond `seconds`, if
    that step took as long as the last one.
    """

    steps: int
    seconds: float
    message_fd: int
    end_ids: Int32
    end_start: Int32


@dataclass(frozen=True, slots=True)
class RowStep:
    """One step's work: B sequences in `row[B]` of the table, after `changes` are applied in order.

    `query_start[B+1]` delimits each sequence's query tokens, which are the last of its `seq_len[B]` tokens after the
    step. Decoding sequences come first. With state layers, a sequence's state is in slot `row[i]`; it starts from zeros
    if its query tokens are all of its `seq_len[i]`. `table` is the engine's row table with the changes applied, for a
    backend that keeps none; None if the step was sent to another process.

    `scores`: prompt tokens whose log-probabilities are requested. `guided`: the masks of some rows are not in the table
    yet, so nothing is sampled before `StepHandle.choose`. `run`: this is the first of several steps. `second_text[B]`:
    where the second text of a pair begins, the sequence's length for others; empty if there are no pairs. `adapter[B]`:
    slot of each sequence's adapter, -1 for none; empty if no sequence has one. The size of all fields but `table`
    depends on the changes and the number of sequences, never on their lengths. The arrays are valid until the next
    step.
    """

    changes: list[RowChange]
    row: Int32
    query_start: Int32
    seq_len: Int32
    sample: RowSamples
    table: RowTable | None = None
    scores: list[PromptScores] = field(default_factory=list)
    pooling: RowPooling | None = None
    guided: bool = False
    run: DecodeRun | None = None
    second_text: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    adapter: Int32 = field(default_factory=lambda: np.empty(0, np.int32))


class ScoredTokens(NamedTuple):
    """The result of a `PromptScores` over n tokens with k alternatives; NaN where logits are not numbers."""

    logprob: Float32
    """[n]"""
    rank: Int32
    """[n]"""
    top_ids: Int32
    """[n, k]"""
    top_logprobs: Float32
    """[n, k]"""


@dataclass(frozen=True, slots=True)
class StepResult:
    """`tokens[R]` of the sample rows; for rows with logprobs, `logprob[R]`, `rank[R]`, `top[i]` = (ids, logprobs).

    After a `DecodeRun` they are `tokens[steps, R]`, a row for each step that was computed. A token of `NOT_NUMBERS`
    marks a row with NaN or infinite logits, `NO_CHOICE` one whose every id is banned. `scores` are in the order of the
    step's. `pooled[D, hidden]` are the sums that the step completed, in the order of its `pooling`; None if it has
    none. The arrays may belong to the backend and are valid until its next step.
    """

    tokens: Int32
    logprob: Float32
    rank: Int32
    top: list[tuple[Int32, Float32] | None]
    scores: list[ScoredTokens] = field(default_factory=list)
    pooled: Float32 | None = None


NOT_NUMBERS = -1
NO_CHOICE = -2
