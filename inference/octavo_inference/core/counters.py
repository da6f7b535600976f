"""Engine counters for the load report and the metrics."""

from __future__ import annotations

import msgspec

from octavo_protocol.load import StepSums


class GuidanceTotals(msgspec.Struct, kw_only=True):
    """Running totals of guided decoding; times in seconds."""

    grammars: int = 0
    """Compiled grammars. Those found in the cache do not count."""
    grammar_seconds: float = 0.0
    masks: int = 0
    mask_seconds: float = 0.0
    """Time to fill the masks, most of it while the model computes."""
    forced_tokens: int = 0
    """Tokens appended without a sample."""
    budgets_reached: int = 0
    """Answers whose thinking ended by force."""

    @property
    def used(self) -> bool:
        """True once a request had guidance."""
        return self.grammars > 0 or self.masks > 0


class Counters:
    """Running totals. `add_step` keeps the sums from which a reader can fit the duration of a step."""

    def __init__(self) -> None:
        self.requests = 0
        self.pooled_requests = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.checks = 0
        self.guidance = GuidanceTotals()
        self._steps = 0
        self._seconds = 0.0
        self._idle_rows = 0
        self._held_rows = 0
        self._unused_slots = 0
        # Sums of x, of x*y for x <= y, and of seconds*x, over x, y in (prefill, rows, context).
        self._single = [0, 0, 0]
        self._products = [0, 0, 0, 0, 0, 0]
        self._timed = [0.0, 0.0, 0.0]

    def add_step(self, seconds: float, prefill: int, rows: int, context: int, idle_rows: int) -> None:
        """Add one step: `prefill` chunk tokens, `rows` decoded tokens, `context` tokens these attended to."""
        self._steps += 1
        self._seconds += seconds
        self._idle_rows += idle_rows
        values = (prefill, rows, context)
        products = (
            prefill * prefill,
            prefill * rows,
            prefill * context,
            rows * rows,
            rows * context,
            context * context,
        )
        for i, value in enumerate(values):
            self._single[i] += value
            self._timed[i] += seconds * value
        for i, value in enumerate(products):
            self._products[i] += value

    def add_state(self, held_rows: int, unused_slots: int, steps: int = 1) -> None:
        """Add the rows in use during some steps, and the unfilled token slots of their blocks after the last step."""
        self._held_rows += held_rows * steps
        self._unused_slots += unused_slots * steps

    def steps(self) -> StepSums:
        """Return the sums so far."""
        pp, pr, pc, rr, rc, cc = self._products
        return StepSums(
            count=self._steps,
            seconds=self._seconds,
            prefill=self._single[0],
            rows=self._single[1],
            context=self._single[2],
            prefill_prefill=pp,
            prefill_rows=pr,
            prefill_context=pc,
            rows_rows=rr,
            rows_context=rc,
            context_context=cc,
            seconds_prefill=self._timed[0],
            seconds_rows=self._timed[1],
            seconds_context=self._timed[2],
            idle_rows=self._idle_rows,
            held_rows=self._held_rows,
            unused_slots=self._unused_slots,
        )
