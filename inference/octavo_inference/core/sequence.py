"""One of a request's n answers, from its arrival to its last token."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.guidance import Guide
from octavo_inference.core.logit_rules import NO_RULES, LogitRules
from octavo_inference.core.model_input import Int32
from octavo_inference.core.prompt_logprobs import PromptLogprobs
from octavo_inference.core.request import Request
from octavo_inference.core.snapshot_policy import SnapshotMarks
from octavo_inference.core.speculation.acceptance import Trials


class SequenceState(Enum):
    """State of a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens, blocks and progress of one answer. There are no phases: each step moves `computed` towards `total`.

    Both counts advance when a step is launched, before its result is known. Until then the last `pending` of `total`
    tokens have no value here. Only the first `confirmed` of `computed` tokens are certain to be in the KV pool.

    `tokens` holds prompt and output. It is a view of the row table while the sequence runs and its own array while it
    waits. `blocks` are its block tables, one per group of layers (`core.block_tables`). The first `freed` entries of a
    table are behind its window: they are other blocks by now. The first `registered` ones are registered in the pool.
    """

    __slots__ = (
        "adapter",
        "arrival",
        "arrived",
        "banned",
        "blocks",
        "cached",
        "capacity",
        "computed",
        "computed_before_preemption",
        "confirmed",
        "ends",
        "enqueued",
        "first_start",
        "forks",
        "freed",
        "guide",
        "hashes",
        "host",
        "host_state",
        "index",
        "leader",
        "level",
        "limit",
        "logprobs",
        "min_total",
        "no_cache",
        "penalised",
        "pending",
        "plain",
        "policy",
        "pooling",
        "prompt_len",
        "registered",
        "release_at",
        "request",
        "root",
        "row",
        "ruled",
        "rules",
        "scores",
        "seed",
        "snapshots",
        "started",
        "state",
        "stops",
        "swapped_tokens",
        "tail_shared",
        "tokens",
        "total",
        "trials",
    )

    def __init__(  # noqa: PLR0915 -- a line for each field
        self,
        request: Request,
        index: int,
        prompt: Int32,
        *,
        limit: int,
        seed: int,
        eos: frozenset[int],
        root: bytes,
        arrival: int,
        arrived: float,
        policy: int,
        rules: LogitRules = NO_RULES,
    ) -> None:
        """`limit`: total tokens at which the sequence ends by length. `arrival` numbers sequences, `arrived` is a time.

        `policy` is the index of the retention policy of its blocks. `rules` are those of the request.
        """
        sampling = request.sampling
        self.request = request
        self.index = index
        self.arrival = arrival
        self.arrived = arrived
        self.policy = policy
        self.pooling = request.pooling
        # The slot of its adapter, -1 for none.
        self.adapter = -1
        # Its aged priority at its last start. While it runs, it keeps the boost it gained by waiting.
        self.level = request.priority
        self.enqueued = 0.0
        self.state = SequenceState.WAITING
        self.started = False
        # Time of its first start, in the unit of `arrived`; the arrival until then.
        self.first_start = arrived

        self.tokens: Int32 = prompt
        self.prompt_len = len(prompt)
        self.total = len(prompt)
        self.pending = 0
        self.computed = self.confirmed = 0
        self.computed_before_preemption = self.cached = 0
        self.limit = limit

        self.row = -1
        self.blocks: list[list[int]] = []
        self.freed: list[int] = []
        # The number of confirmed tokens at which a window has passed another block.
        self.release_at = 0
        # Tokens that all tables have blocks for.
        self.capacity = 0
        self.root = root
        self.hashes: list[bytes] = []
        self.registered = 0
        # True after a cache reset: blocks it computes from here on are not registered in the prefix cache.
        self.no_cache = False
        # Preempted by swap: `host` holds the KV of this many of its first tokens.
        self.swapped_tokens = 0
        self.host: NDArray[np.generic] | None = None
        self.host_state: NDArray[np.generic] | None = None
        # With state layers, of its state.
        self.snapshots = SnapshotMarks()
        # True while it shares its partial last block with siblings, until the first of them writes to it.
        self.tail_shared = False
        # Siblings that wait for this sequence to compute the prompt, to share its blocks.
        self.forks: list[Sequence] = []
        self.leader: Sequence | None = None

        # The constraints on its next token. None without, and until the grammar is compiled, when it does not run yet.
        self.guide: Guide | None = None
        guidance = request.guidance
        guided = guidance is not None and guidance.constrains
        has_grammar = guidance is not None and bool(guidance.grammar)

        self.seed = seed
        # A grammar says where an answer may end, whatever `ignore_eos` says.
        self.ends = frozenset() if sampling.ignore_eos and not has_grammar else eos
        self.stops = frozenset(sampling.stop_token_ids)
        self.min_total = len(prompt) + sampling.min_tokens
        self.penalised = (
            sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
            or sampling.repetition_penalty != 1
            or rules.changes_logits
            or guided
        )
        self.rules = rules
        self.logprobs = sampling.reports_logprobs
        # How its guessed tokens fared.
        self.trials = Trials()
        # The engine has nothing to do between two of its tokens.
        self.plain = not (guided or self.logprobs)
        self.ruled = len(rules.bias_ids) > 0 or len(rules.word_ends) > 0
        # Prompt log-probabilities: only the first of the siblings computes the prompt.
        wanted = sampling.prompt_logprobs if index == 0 else None
        self.scores = None if wanted is None else PromptLogprobs(len(prompt), wanted)
        self.banned: NDArray[np.int32] = np.array(sorted(self.ends | self.stops), dtype=np.int32)

    @property
    def constrained(self) -> bool:
        """True if the request's own rules or its guidance may rule out every token."""
        return self.rules.changes_logits or self.guide is not None

    @property
    def num_known_tokens(self) -> int:
        """Number of tokens whose value is in `tokens`."""
        return self.total - self.pending

    @property
    def num_missing_tokens(self) -> int:
        """Number of tokens to compute before the next one can be sampled."""
        return self.total - self.computed
