"""Requests with guidance in the engine: their grammars are compiled, their masks filled, and their tokens followed.

A request passes through the methods in their order: `begin` and, if its grammar is not compiled yet, `compiled` and
`guide`; then in each step `start`, `finish` and, for the sampled token, `advance`.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo_inference.core.counters import GuidanceTotals
from octavo_inference.core.grammar_compiler import Compiled, GrammarCompiler
from octavo_inference.core.guidance import Compile, GrammarState, Guide
from octavo_inference.core.jump_ahead import forced_tokens, jumps
from octavo_inference.core.masks import GuidedRow, MaskJob, MaskThread
from octavo_inference.core.model_input import Int32, RowChange
from octavo_inference.core.pending_step import PendingStep
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.sequence import Sequence, SequenceState

# The vocabulary takes 0.3 s, and what arrives meanwhile waits. Whoever uses a server that is ready comes at once.
_QUIET_SECONDS = 1.0


class GuidedSteps:
    """The guidance of one engine's requests. Used from the engine's thread.

    `compiler` is None without `load_vocabulary`; then no request may have a grammar. `ends` is the mask of the ids that
    end an answer. With `jump_ahead`, tokens that follow in any case are appended without a sample, if their ids are
    below `vocab`.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Compile] | None,
        scheduler: Scheduler,
        ends: Int32,
        totals: GuidanceTotals,
        clock: Callable[[], float],
        *,
        jump_ahead: bool,
        vocab: int,
    ) -> None:
        self.compiler = None if load_vocabulary is None else GrammarCompiler(load_vocabulary, clock)
        self._scheduler = scheduler
        self._ends = ends
        self._totals = totals
        self._jump_ahead = jump_ahead
        self._vocab = vocab
        self._masks = MaskThread(clock)

    @property
    def compiling(self) -> list[str]:
        """The ids of the requests that wait for their grammar, or whose compiled grammar was not taken yet."""
        return [] if self.compiler is None else list(self.compiler.names)

    @property
    def has_compiled(self) -> bool:
        """True if `compiled` has something to return."""
        return self.compiler is not None and self.compiler.ready

    def prepare(self, idle: float) -> float | None:
        """Load the vocabulary in a thread, once the engine has had no work for a while; `idle` seconds up to now.

        Returns the seconds until then; None if nothing is left to prepare.
        """
        if self.compiler is None or self.compiler.has_begun:
            return None
        if idle < _QUIET_SECONDS:
            return _QUIET_SECONDS - idle
        self.compiler.prepare()
        return None

    def begin(self, sequences: list[Sequence]) -> bool:
        """Guide the sequences of a new request. Returns False if its grammar has to be compiled first."""
        request = sequences[0].request
        grammar = "" if request.guidance is None else request.guidance.grammar
        matcher = None
        if grammar and self.compiler is not None:
            matcher = self.compiler.cached(grammar)
            if matcher is None:
                self.compiler.start(request.id, grammar)
                return False
        self.guide(sequences, matcher)
        return True

    def compiled(self) -> list[tuple[str, Compiled]]:
        """The ids of the requests whose grammars are compiled, each with its matcher or an error."""
        if self.compiler is None or not self.compiler.ready:
            return []
        found = self.compiler.take()
        self._totals.grammars, self._totals.grammar_seconds = self.compiler.compiled, self.compiler.seconds
        return found

    def guide(self, sequences: list[Sequence], matcher: GrammarState | None) -> None:
        """Guide the sequences of a request, by copies of the matcher of its grammar if it has one."""
        guidance = sequences[0].request.guidance
        if guidance is None or not guidance.constrains or sequences[0].pooling is not None:
            return
        for sequence in sequences:
            sequence.guide = Guide(guidance, None if matcher is None else matcher.copy(), self._ends)

    def start(self, rows: list[GuidedRow]) -> MaskJob | None:
        """Fill the masks of a step's guided rows in a thread."""
        return self._masks.start(rows) if rows else None

    def abandon(self, job: MaskJob | None) -> None:
        """Give up the masks of a step that failed."""
        if job is not None:
            self._masks.abandon(job)

    def finish(self, pending: PendingStep) -> tuple[list[RowChange], list[tuple[Sequence, str]]]:
        """Wait for the masks of a step, once. Starts them if `start` was too early for them.

        Returns the masks of sequences that still run, and the sequences whose masks failed, each with a message.
        """
        rows = [each for each in pending.guided if each.sequence.state is not SequenceState.FINISHED]
        pending.guided = []
        job = pending.masks or self.start(rows)
        failed: list[tuple[Sequence, str]] = []
        if job is not None:
            failed, seconds = self._masks.finish(job)
            self._totals.masks += len(rows)
            self._totals.mask_seconds += seconds
        return [RowChange("mask", each.row, 0, each.mask) for each in rows], failed

    def advance(self, sequence: Sequence, guide: Guide, token: int) -> list[int]:
        """Advance by the newest token. Returns the tokens that follow in any case, which are appended to the sequence.

        Raises `RequestError` if the grammar does not allow the token, or its state is too complex.
        """
        closed = guide.budget_reached
        guide.advance(token)
        jump = self._jump_ahead and jumps(sequence)
        forced = forced_tokens(sequence, self._scheduler.jump_room(sequence), self._vocab) if jump else []
        self._totals.budgets_reached += guide.budget_reached and not closed
        if forced:
            self._scheduler.extend(sequence, forced)
            self._totals.forced_tokens += len(forced)
        return forced
