"""The step sums of a load report; jumps over several decode steps in closed form. Pure."""

from __future__ import annotations

from octavo_protocol.load import StepSums
from octavo_simulator.steptime import PodProfile


class Sums:
    """Running sums over steps, from which the autoscaler fits its step cost. `busy`: seconds of computation."""

    def __init__(self, profile: PodProfile) -> None:
        self._profile = profile
        self.busy = 0.0
        self.count = 0
        self._p = self._n = self._c = 0
        self._pp = self._pn = self._pc = self._nn = self._nc = self._cc = 0
        self._tp = self._tn = self._tc = 0.0

    def mixed(self, seconds: float, prefill: int, rows: int, context: int) -> None:
        """Add one step with prompt tokens."""
        self.count += 1
        self.busy += seconds
        self._p += prefill
        self._n += rows
        self._c += context
        self._pp += prefill * prefill
        self._pn += prefill * rows
        self._pc += prefill * context
        self._nn += rows * rows
        self._nc += rows * context
        self._cc += context * context
        self._tp += seconds * prefill
        self._tn += seconds * rows
        self._tc += seconds * context

    def decodes(self, factor: float, k: int, rows: int, context: int) -> None:
        """Add `k` steps of `rows` rows with `context` tokens at first, and one more per row in each next step."""
        p, n = self._profile, rows
        once = k * (k - 1) // 2
        contexts = k * context + n * once
        squares = k * context * context + 2 * context * n * once + n * n * (once * (2 * k - 1) // 3)
        fixed = p.linear(n)
        seconds = factor * (k * fixed + p.context * contexts)
        self.count += k
        self.busy += seconds
        self._n += k * n
        self._c += contexts
        self._nn += k * n * n
        self._nc += n * contexts
        self._cc += squares
        self._tn += seconds * n
        self._tc += factor * (fixed * contexts + p.context * squares)

    def steps(self) -> StepSums:
        """The sums for the load report."""
        return StepSums(
            count=self.count,
            seconds=self.busy,
            prefill=self._p,
            rows=self._n,
            context=self._c,
            prefill_prefill=self._pp,
            prefill_rows=self._pn,
            prefill_context=self._pc,
            rows_rows=self._nn,
            rows_context=self._nc,
            context_context=self._cc,
            seconds_prefill=self._tp,
            seconds_rows=self._tn,
            seconds_context=self._tc,
        )
